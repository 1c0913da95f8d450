"""A run has the same findings in a recording that `evaluate` reads and in live hook calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from queenright.health.settings import HealthSettings
from queenright.judge.evaluation import evaluate_run
from queenright.server.serving import RunningService
from tests.server.test_hooks import AGENT_ID, post_call, telemetry

__all__ = ["telemetry"]

ERRORS = (
    "Exit code 1\nModuleNotFoundError: No module named 'yaml'",
    "Exit code 2\npytest: error: unrecognized arguments: --x",
    "Exit code 1\nFAILED tests/a.py::test_a - AssertionError",
    "Exit code 127\nbash: line 1: rg: command not found",
    "Exit code 1\n2 failed, 8 passed",
    "Exit code 1\nKeyError: 'q'",
    "Exit code 128\nfatal: not a git repository",
)
REFUSED_EDITS = (
    "File has not been read yet.",
    "String to replace not found",
    "Found 2 matches",
    "File has been modified since read",
    "old_string and new_string are the same",
)


class Call(NamedTuple):
    tool: str
    arguments: dict[str, Any]
    error: str = ""
    result: str = ""


def make_refused_edits(errors: tuple[str, ...]) -> list[Call]:
    arguments = [
        {"file_path": "/a.py", "old_string": f"o{number}", "new_string": f"n{number}"}
        for number in range(len(errors))
    ]
    return [
        Call("Edit", call_arguments, error) for call_arguments, error in zip(arguments, errors, strict=True)
    ]


RUNS = {
    "errors of different kinds": [
        Call("Bash", {"command": f"cmd {n}"}, error) for n, error in enumerate(ERRORS)
    ],
    "edits refused for different reasons": make_refused_edits(REFUSED_EDITS),
    "edits refused for one reason": make_refused_edits((REFUSED_EDITS[1],) * 6),
    "prose as a command": [
        Call(
            "Bash", {"command": f"{word} us look"}, f"Exit code 127\nbash: line 1: {word}: command not found"
        )
        for word in ("Let", "Now", "I", "The", "Here", "We")
    ],
    "one missing module": [
        Call("Bash", {"command": f"python tool_{n}.py"}, ERRORS[0].replace("yaml", f"mod{n}"))
        for n in range(6)
    ],
}
RUNS_WITH_FINDINGS = {"edits refused for one reason", "prose as a command", "one missing module"}


@pytest.mark.parametrize("name", RUNS)
async def test_hooks_and_recordings_of_one_run_give_the_same_findings(
    name: str, telemetry: httpx.AsyncClient, running: RunningService, tmp_path: Path
) -> None:
    """B30: errors are classified by their text, because the client has one name for all of them."""
    steps = [
        {
            "kind": "tool",
            "name": call.tool,
            "args": json.dumps(call.arguments),
            "result_excerpt": call.error or call.result,
            "is_error": bool(call.error),
        }
        for call in RUNS[name]
    ]

    await post_call(telemetry, {"hook_event_name": "SessionStart", "session_id": "s", "cwd": "/x/project"})
    for number, call in enumerate(RUNS[name]):
        body = {
            "session_id": "s",
            "cwd": "/x/project",
            "tool_name": call.tool,
            "tool_input": call.arguments,
            "tool_use_id": f"toolu_{number}",
        }
        await post_call(telemetry, {"hook_event_name": "PreToolUse", **body})
        await post_call(telemetry, {"hook_event_name": "PostToolUseFailure", **body, "error": call.error})
    [worker] = running.service.monitor.of_agent(AGENT_ID)

    live_severities = {
        (finding.kind.value, finding.severity.value)
        for finding in worker.findings
        if finding.severity.value != "low"
    }
    findings = evaluate_run({"dataset": "d", "run_id": "r", "steps": steps}, HealthSettings())["findings"]
    recorded_severities = {item["kind"]: item["severity"] for item in findings if item["severity"] != "low"}
    assert live_severities == set(recorded_severities.items())
    assert bool(live_severities) == (name in RUNS_WITH_FINDINGS)
