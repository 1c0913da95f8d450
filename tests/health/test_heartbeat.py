"""Heartbeats over HTTP: which are accepted, and which are refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.monitoring.heartbeat import Heartbeat, InvalidHeartbeatError, parse_heartbeat
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.runtime.events import AgentEvent, EventType

REQUIREMENT = {
    "agentId": "bee",
    "taskId": "nectar",
    "timestamp": "2026-01-24T10:00:00Z",
    "phase": "search",
    "lastToolCall": "2026-01-24T09:59:30+00:00",
    "tokenCount": 1200,
    "errorCount": 1,
    "progressIndicator": "3 of 7",
}


def parse(**fields: Any) -> Heartbeat:
    return parse_heartbeat(json.dumps(fields))


def test_requirements_heartbeat_is_read_as_written() -> None:
    """
    002 §11: heartbeats work for all kinds of agents, including those that follow the schema of the
    requirement.
    """
    event = parse(**REQUIREMENT).make_event(1.0, session_id="s", incarnation_id="i")

    assert (event.type, event.agent_id, event.session_id) == (EventType.AGENT_HEARTBEAT, "bee", "s")
    assert event.time == 1_769_248_800
    assert event.data == {
        "task_id": "nectar",
        "phase": "search",
        "last_tool_call": 1_769_248_770,
        "token_count": 1200,
        "error_count": 1,
        "progress_indicator": "3 of 7",
    }


def test_both_spellings_mean_the_same() -> None:
    assert parse(agentId="bee", tokenCount=5) == parse(agent_id="bee", token_count=5)


def test_agent_id_suffices_and_missing_fields_are_omitted() -> None:
    event = parse(agent_id="bee").make_event(7.0)

    assert (event.time, dict(event.data)) == (7.0, {})


@pytest.mark.parametrize("empty", ["", None])
def test_empty_fields_are_unknown(empty: str | None) -> None:
    """B68: an empty field counts as missing."""
    event = parse(agent_id="bee", last_tool_call=empty, token_count=empty, task_id=empty, interval=empty)

    assert dict(event.make_event(7.0).data) == {}


def test_newer_workers_heartbeat_is_read() -> None:
    assert parse(agent_id="bee", mood="sunny").agent_id == "bee"


def test_truncated_heartbeat_is_refused() -> None:
    """B68: a truncated heartbeat is refused."""
    body = json.dumps(REQUIREMENT)
    for length in range(len(body)):
        with pytest.raises(InvalidHeartbeatError, match="This is not a heartbeat"):
            parse_heartbeat(body[:length])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("agent_id", ""),
        ("agent_id", " "),
        ("agent_id", None),
        ("agent_id", "a" * 257),
        ("session_id", "a\0b"),
        ("timestamp", "yesterday"),
        ("timestamp", -1),
        ("timestamp", 1e300),
        ("timestamp", True),
        ("last_tool_call", [1]),
        ("token_count", -1),
        ("token_count", 2**63),
        ("token_count", "many"),
        ("token_count", "7"),
        ("error_count", 1.5),
        ("error_count", False),
        ("interval", True),
        ("interval", 0),
        ("interval", float("inf")),
        ("progress_indicator", {"a": 1}),
    ],
)
def test_invalid_field_is_named_with_its_value(field: str, value: object) -> None:
    with pytest.raises(InvalidHeartbeatError, match=rf"^{field}: "):
        parse_heartbeat(json.dumps({"agent_id": "bee", field: value}))


def test_secret_in_a_refused_field_is_not_repeated() -> None:
    with pytest.raises(InvalidHeartbeatError) as error:
        parse(agent_id="bee", token_count="sk-" + "a1B2" * 12)

    assert "a1B2a1B2a1B2" not in str(error.value)


@given(st.binary(max_size=200) | st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_any_body_is_parsed_or_refused(body: bytes | str) -> None:
    """B68: an invalid body is refused and has no other effect."""
    with contextlib.suppress(InvalidHeartbeatError):
        assert parse_heartbeat(body).agent_id


def test_heartbeat_changes_no_state() -> None:
    """B68: a heartbeat shows only that the process runs."""
    monitor = HealthMonitor(HealthSettings())
    monitor.apply(AgentEvent(type=EventType.EXECUTION_STARTED, time=0, agent_id="bee", session_id="s"), 0)
    before = monitor.get("bee")
    assert before is not None
    state = (before.state, before.vitals.last_progress, before.vitals.last_activity)

    events = monitor.apply(
        parse(agent_id="bee", error_count=9000, phase="?").make_event(60, session_id="s"), 60
    )

    after = monitor.get("bee")
    assert after is not None
    assert events == []
    assert (after.state, after.vitals.last_progress, after.vitals.last_activity) == state
    assert after.vitals.last_heartbeat == 60


def test_missing_agent_is_named_as_documented() -> None:
    with pytest.raises(InvalidHeartbeatError, match=r"^agent_id: it is required"):
        parse_heartbeat("{}")
