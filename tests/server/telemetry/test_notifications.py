"""Notification hooks of Claude Code. Only a permission prompt waits for the user."""

from __future__ import annotations

from typing import Any

import pytest

from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.instrumentation.names import WaitingReason
from tests.clients.fixtures import Record
from tests.server.telemetry.replay import replay

PERMISSION_PROMPT = {
    "hook_event_name": "Notification",
    "message": "Claude needs your permission to use Bash",
    "notification_type": "permission_prompt",
}
UNTYPED_PROMPT = {"hook_event_name": "Notification", "message": PERMISSION_PROMPT["message"]}
OTHER_NOTIFICATION = PERMISSION_PROMPT | {"message": "Signed in", "notification_type": "auth_success"}
BASH_CALL = {"tool_name": "Bash", "tool_input": {"command": "rm -rf build"}, "tool_use_id": "b"}
READ_CALL = {"tool_name": "Read", "tool_input": {"file_path": "/a"}, "tool_use_id": "r"}
TOOL_START = BASH_CALL | {"hook_event_name": "PreToolUse"}
TURN_ENDED = BASH_CALL | {"hook_event_name": "PostToolUse", "tool_response": "done"}
SUBAGENT_TOOL_START = READ_CALL | {"hook_event_name": "PreToolUse", "agent_id": "a1"}
SUBAGENT_ENDED = READ_CALL | {"hook_event_name": "PostToolUse", "tool_response": "text", "agent_id": "a1"}
PERMISSION_REQUEST = BASH_CALL | {"hook_event_name": "PermissionRequest"}
WAITING = WaitingReason.USER_INPUT


@pytest.mark.parametrize(
    ("calls", "waiting_reason"),
    [
        pytest.param([TOOL_START, PERMISSION_PROMPT], WAITING, id="permission-prompt"),
        pytest.param([TOOL_START, UNTYPED_PROMPT], WAITING, id="prompt-of-an-earlier-version"),
        pytest.param(
            [TOOL_START, PERMISSION_PROMPT, SUBAGENT_TOOL_START, SUBAGENT_ENDED],
            WAITING,
            id="sub-agent-continues",
        ),
        pytest.param([TOOL_START, PERMISSION_PROMPT, TURN_ENDED], None, id="granted"),
        pytest.param(
            [TOOL_START, PERMISSION_REQUEST, PERMISSION_PROMPT, TURN_ENDED], None, id="request-was-reported"
        ),
        pytest.param([TOOL_START, TURN_ENDED, PERMISSION_PROMPT], None, id="late-prompt"),
        pytest.param([TOOL_START, OTHER_NOTIFICATION], None, id="another-notification"),
        pytest.param([TOOL_START], None, id="no-notification"),
    ],
)
def test_permission_prompt_waits_until_its_call_ends(
    calls: list[dict[str, Any]], waiting_reason: WaitingReason | None
) -> None:
    first_calls = [
        {"hook_event_name": "SessionStart"},
        {"hook_event_name": "UserPromptSubmit", "prompt": "go"},
    ]
    records = [
        Record(float(second), "/hooks/claude-code", call | {"session_id": "s"})
        for second, call in enumerate([*first_calls, *calls])
    ]

    assert compute_vitals(records).waiting is waiting_reason


def test_question_tool_waits_with_its_question() -> None:
    question = {"questions": [{"question": "Which hive?", "options": [{"label": "North"}]}]}
    call = {"tool_name": "AskUserQuestion", "tool_input": question, "tool_use_id": "q", "session_id": "s"}
    session_start = {"hook_event_name": "SessionStart", "session_id": "s"}
    records = [
        Record(0.0, "/hooks/claude-code", session_start),
        Record(1.0, "/hooks/claude-code", call | {"hook_event_name": "PreToolUse"}),
    ]

    vitals = compute_vitals(records)

    assert (vitals.waiting, vitals.question) == (WAITING, "Which hive?")


def compute_vitals(records: list[Record]) -> VitalSigns:
    monitor = HealthMonitor(HealthSettings())
    for event in replay(records):
        monitor.apply(event, event.time)
    [worker] = monitor.workers()
    return worker.vitals
