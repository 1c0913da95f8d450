from typing import Any

import pytest

from tests.detection.oracle import find_first_repeated_call, name_group

LOOP: list[dict[str, Any]] = [{"kind": "tool", "name": "bash", "args_hash": "a", "result_hash": "r"}] * 12


@pytest.mark.parametrize(
    ("run", "group"),
    [
        ({"dataset": "d", "agent": "x", "steps": LOOP, "success": True}, "d x, solved"),
        ({"dataset": "d", "agent": "x", "steps": LOOP, "success": "yes"}, "d x, outcome unknown"),
        (
            {"dataset": "intercode_bash", "steps": [{"reward": 0.5}, *LOOP], "success": False},
            "intercode_bash, zero progress",
        ),
        (
            {"dataset": "d", "agent": "repairagent", "steps": [{"rel": "repetition"}] * 3},
            "d repairagent, three equivalent actions in a row",
        ),
    ],
)
def test_run_counts_in_its_group(run: dict[str, Any], group: str) -> None:
    assert name_group(run) == group


def test_first_repeated_call_has_the_same_result() -> None:
    steps = [LOOP[0], {**LOOP[0], "result_hash": "other"}, LOOP[0]]

    assert find_first_repeated_call(steps) == 2
