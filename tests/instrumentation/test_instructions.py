"""Parsing of the service's instructions, valid and invalid."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.instrumentation.instructions import (
    MESSAGE_LIMIT,
    Instruction,
    InvalidInstruction,
    Nudge,
    Termination,
    parse_instructions,
)

NOW = 1_767_225_600.0


def parse_items(*items: Any) -> list[Instruction | InvalidInstruction]:
    body = {"instructions": list(items)}
    return parse_instructions(body, session_id="s", incarnation_id="i", now=NOW)


def make_item(**changes: Any) -> dict[str, Any]:
    return {"instruction_id": "n1", "kind": "nudge", "message": "Go on.", "expires_at": NOW + 60, **changes}


def test_nudge_and_termination_are_parsed() -> None:
    assert parse_items(make_item(), make_item(instruction_id="t1", kind="terminate", message="over")) == [
        Nudge(message="Go on.", instruction_id="n1", expires_at=NOW + 60),
        Termination(reason="over", instruction_id="t1", expires_at=NOW + 60),
    ]


@pytest.mark.parametrize(
    "expires_at", ["2026-01-01T00:01:00+00:00", "2026-01-01T00:01:00Z", "2026-01-01T00:01:00"]
)
def test_time_may_be_iso_8601(expires_at: str) -> None:
    assert parse_items(make_item(expires_at=expires_at)) == [
        Nudge(message="Go on.", instruction_id="n1", expires_at=NOW + 60)
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"expires_at": NOW},
        {"expires_at": NOW - 1},
        {"expires_at": None},
        {"expires_at": "soon"},
        {"expires_at": float("inf")},
        {"expires_at": True},
        {"kind": "explode"},
        {"message": ""},
        {"message": 3},
    ],
)
def test_stale_or_invalid_instruction_is_reported_and_ignored(changes: dict[str, Any]) -> None:
    """B67: a stale instruction is discarded."""
    [instruction] = parse_items(make_item(**changes))

    assert isinstance(instruction, InvalidInstruction)
    assert instruction.instruction_id == "n1"


@pytest.mark.parametrize("other", [{"incarnation_id": "i2"}, {"session_id": "s2"}])
def test_instruction_for_another_incarnation_is_skipped(other: dict[str, str]) -> None:
    """B67: an instruction for one incarnation never reaches another."""
    assert parse_items(make_item(**other)) == []


def test_long_message_is_truncated() -> None:
    [instruction] = parse_items(make_item(message="x" * (MESSAGE_LIMIT + 1)))

    assert isinstance(instruction, Nudge)
    assert len(instruction.message) == MESSAGE_LIMIT


@pytest.mark.parametrize("body", [None, [], {}, {"instructions": {}}, "text", 3])
def test_invalid_response_raises_value_error(body: object) -> None:
    with pytest.raises(ValueError, match="no 'instructions' list"):
        parse_instructions(body, session_id="s", incarnation_id="i", now=NOW)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(
        st.fixed_dictionaries({}, optional=dict.fromkeys(make_item(), json_values)) | json_values, max_size=5
    )
)
def test_parser_handles_any_input(items: list[Any]) -> None:
    for instruction in parse_items(*json.loads(json.dumps(items))):
        assert 0 < len(instruction.instruction_id) <= 200
        assert isinstance(instruction, InvalidInstruction) or instruction.expires_at > NOW
