"""A permission request waits for a decision while other calls of the session continue."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.server.serving import RunningService, serving
from tests.server.test_hooks import HOOK_PATH, load_hook_calls
from tests.server.test_permissions import get_waiting_reason, make_answering_settings, open_telemetry_client
from tests.waiting import until


def make_hook_call(kind: str, command: str, call_id: str = "", **fields: str) -> dict[str, Any]:
    """Return a hook call about one tool call of the recorded session."""
    _, _, tool_start, tool_end, *_ = load_hook_calls("healthy")
    call = dict(tool_end if kind == "PostToolUse" else tool_start)
    call |= {"hook_event_name": kind, "tool_name": "Bash", "tool_input": {"command": command}} | fields
    call.pop("tool_use_id")
    return call | ({"tool_use_id": call_id} if call_id else {})


FIRST_CALL = (make_hook_call("PreToolUse", "make docs", "call-a"),)
FIRST_REQUEST = (*FIRST_CALL, make_hook_call("PermissionRequest", "make docs"))
FIRST_CALL_END = make_hook_call("PostToolUse", "make docs", "call-a")
OTHER_TOOL_CALL = {"tool_name": "WebFetch"}
SUBAGENT_FIELDS = {"agent_id": "a1", "agent_type": "general-purpose"}


@pytest.mark.parametrize(
    ("calls_before", "calls_after"),
    [
        pytest.param(FIRST_REQUEST, (FIRST_CALL_END,), id="another-request-was-granted"),
        pytest.param(FIRST_CALL, (FIRST_CALL_END,), id="call-without-a-request-ends"),
        pytest.param(
            (make_hook_call("PreToolUse", "", "call-a", **OTHER_TOOL_CALL),),
            (make_hook_call("PostToolUse", "", "call-a", **OTHER_TOOL_CALL),),
            id="call-of-another-tool-ends",
        ),
        pytest.param(
            (),
            (
                make_hook_call("PreToolUse", "ls", "call-a", **SUBAGENT_FIELDS),
                make_hook_call("PostToolUse", "ls", "call-a", **SUBAGENT_FIELDS),
            ),
            id="sub-agent-continues",
        ),
    ],
)
async def test_permission_request_waits_while_other_calls_continue(
    running: RunningService, calls_before: tuple[dict[str, Any], ...], calls_after: tuple[dict[str, Any], ...]
) -> None:
    """B93: an agent that waits for its user is not stalled, whatever its other calls do."""
    session_start, prompt, *_ = load_hook_calls("healthy")
    result = (
        make_hook_call("PreToolUse", "rm -rf build", "call-b"),
        make_hook_call("PermissionRequest", "rm -rf build"),
    )
    async with open_telemetry_client(running) as telemetry:
        for call in (session_start, prompt, *calls_before, *result):
            assert (await telemetry.post(HOOK_PATH, json=call)).json() == {}
        assert get_waiting_reason(running) == "user_input"

        for call in calls_after:
            assert (await telemetry.post(HOOK_PATH, json=call)).json() == {}

    assert get_waiting_reason(running) == "user_input"


async def test_decision_on_one_request_leaves_the_other_open(tmp_path: Path) -> None:
    """B93: a decision belongs to the request with its id. Other requests continue to wait."""
    session_start, prompt, *_ = load_hook_calls("healthy")
    commands = ("make docs", "rm -rf build")
    async with (
        serving(make_answering_settings(tmp_path)) as running,
        open_telemetry_client(running) as telemetry,
    ):
        for call in (
            session_start,
            prompt,
            *(make_hook_call("PreToolUse", command, command) for command in commands),
        ):
            await telemetry.post(HOOK_PATH, json=call)
        questions = [
            asyncio.create_task(telemetry.post(HOOK_PATH, json=make_hook_call("PermissionRequest", command)))
            for command in commands
        ]
        pending_requests = running.service.permissions.open_requests
        await until(lambda: len(pending_requests()) == 2, "both requests are pending")
        [first_request] = [
            pending_request
            for pending_request in pending_requests()
            if pending_request.question == "Bash: make docs"
        ]

        async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http:
            path = f"/api/permissions/{first_request.request_id}/answer"
            response = await http.post(path, json={"decision": "allow", "by": "ada"})
        decision = (await questions[0]).json()

        assert response.status_code == 202
        assert decision["hookSpecificOutput"]["decision"]["behavior"] == "allow"
        assert [pending_request.question for pending_request in pending_requests()] == ["Bash: rm -rf build"]
        assert get_waiting_reason(running) == "user_input"
        questions[1].cancel()
