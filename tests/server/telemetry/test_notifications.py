"""Notifications of Claude Code: only a permission prompt waits for the user."""

from __future__ import annotations

from typing import Any

import pytest

from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.instrumentation.names import WaitingReason
from tests.clients.fixtures import Record
from tests.server.telemetry.replay import replay

PROMPT = {
    "hook_event_name": "Notification",
    "message": "Claude needs your permission to use Bash",
    "notification_type": "permission_prompt",
}
UNTYPED = {"hook_event_name": "Notification", "message": PROMPT["message"]}
OTHER = PROMPT | {"message": "Signed in", "notification_type": "auth_success"}
BASH = {"tool_name": "Bash", "tool_input": {"command": "rm -rf build"}, "tool_use_id": "b"}
READ = {"tool_name": "Read", "tool_input": {"file_path": "/a"}, "tool_use_id": "r"}
TOOL_START = BASH | {"hook_event_name": "PreToolUse"}
TURN_ENDED = BASH | {"hook_event_name": "PostToolUse", "tool_response": "done"}
SUBAGENT_TOOL_START = READ | {"hook_event_name": "PreToolUse", "agent_id": "a1"}
SUBAGENT_ENDED = READ | {"hook_event_name": "PostToolUse", "tool_response": "text", "agent_id": "a1"}
REQUEST = BASH | {"hook_event_name": "PermissionRequest"}
WAITING = WaitingReason.USER_INPUT


@pytest.mark.parametrize(
    ("calls", "waiting"),
    [
        pytest.param([TOOL_START, PROMPT], WAITING, id="permission-prompt"),
        pytest.param([TOOL_START, UNTYPED], WAITING, id="prompt-of-an-earlier-version"),
        pytest.param(
            [TOOL_START, PROMPT, SUBAGENT_TOOL_START, SUBAGENT_ENDED], WAITING, id="sub-agent-works-on"
        ),
        pytest.param([TOOL_START, PROMPT, TURN_ENDED], None, id="granted"),
        pytest.param([TOOL_START, REQUEST, PROMPT, TURN_ENDED], None, id="request-was-reported"),
        pytest.param([TOOL_START, TURN_ENDED, PROMPT], None, id="late-prompt"),
        pytest.param([TOOL_START, OTHER], None, id="another-notification"),
        pytest.param([TOOL_START], None, id="no-notification"),
    ],
)
def test_permission_prompt_waits_until_its_call_ends(
    calls: list[dict[str, Any]], waiting: WaitingReason | None
) -> None:
    begin = [{"hook_event_name": "SessionStart"}, {"hook_event_name": "UserPromptSubmit", "prompt": "go"}]
    records = [
        Record(float(second), "/hooks/claude-code", call | {"session_id": "s"})
        for second, call in enumerate([*begin, *calls])
    ]

    assert compute_vitals(records).waiting is waiting


def test_question_tool_waits_with_its_question() -> None:
    question = {"questions": [{"question": "Which hive?", "options": [{"label": "North"}]}]}
    call = {"tool_name": "AskUserQuestion", "tool_input": question, "tool_use_id": "q", "session_id": "s"}
    begin = {"hook_event_name": "SessionStart", "session_id": "s"}
    records = [
        Record(0.0, "/hooks/claude-code", begin),
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
