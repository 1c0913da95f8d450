"""A tool call in a recorded run is read like the same call in live telemetry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queenright.health.vitals.tool_calls import is_failed_tool_call
from queenright.instrumentation.effects import infer_tool_effect
from queenright.instrumentation.error_class import NOT_ACCEPTED, SHELL_REFUSED, classify_error
from queenright.judge.evaluation.events import RunSteps
from tests.server.otlp.framework_spans import decode, get_event

LOOP_FIELDS = ("tool", "args_hash", "result_hash")


def select_loop_fields(data: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a tool call's event that the loop detectors use."""
    facts = {key: data.get(key) for key in LOOP_FIELDS}
    facts["effect"] = data.get("effect") or infer_tool_effect(data["tool"])
    facts["failed"] = is_failed_tool_call(data)
    facts["class"] = classify_error(data.get("error_type", ""), data.get("error", ""))
    return facts


def read_recorded(tool: str, arguments: object, result: str) -> dict[str, Any]:
    step = {"kind": "tool", "name": tool, "args": arguments, "result_excerpt": result, "is_error": False}
    return select_loop_fields(dict(RunSteps([step]).event(0, 1.0).data))


def read_live(tool: str, arguments: object, result: str) -> dict[str, Any]:
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": tool,
        "gen_ai.tool.call.arguments": json.dumps(arguments),
        "gen_ai.tool.call.result": result,
    }
    span = {"id": 1, "parent": 9, "name": f"execute_tool {tool}", "attributes": attributes}
    return select_loop_fields(dict(get_event(decode(span), "tool_call_completed").data))


@pytest.mark.parametrize(
    ("tool", "arguments", "result", "error"),
    [
        ("bash", {"command": "kubectl -n x get pods"}, "Pending", ""),
        ("bash", {"command": "sleep 5; cat f"}, "the same", ""),
        ("bash", {"command": "jupytext --to py a.ipynb"}, "done", ""),
        ("bash", {"command": "python x.py"}, "row 17: bad", ""),
        ("bash", {"command": "Let me see"}, "Let: command not found", SHELL_REFUSED),
        ("run", {"command": "Let me see"}, "zsh: command not found: Let", SHELL_REFUSED),
        ("run", {"command": "Let me see"}, "x" * 372 + "\nzsh: command not found: Let", SHELL_REFUSED),
        ("run", {"command": "Let me see"}, "x" * 373 + "\nzsh: command not found: Let", ""),
        ("read_file", {"path": "faq"}, "zsh: command not found: Let", ""),
        ("bash", {"command": "cat faq"}, "zsh: command not found: Let", ""),
        ("submit", {"answer": "42"}, "Not accepted.", NOT_ACCEPTED),
        ("deliver", {"answer": "42"}, "Not accepted yet.", NOT_ACCEPTED),
        ("edit_file", {"old": "bees"}, "Error: no such text", "Error: no such text"),
        ("browser_click", {"ref": "e5"}, "Step 3: the same page", ""),
    ],
)
def test_recorded_and_live_calls_have_the_same_loop_fields(
    tool: str, arguments: object, result: str, error: str
) -> None:
    facts = read_recorded(tool, arguments, result)

    assert facts == read_live(tool, arguments, result)
    assert (facts["failed"], facts["class"]) == (bool(error), error)
