"""A permission request waits for its answer while other calls of the session continue."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.server.serving import RunningService, serving
from tests.server.test_hooks import HOOK, hook_calls
from tests.server.test_permissions import answering_settings, telemetry_client, waiting_reason
from tests.waiting import until


def hook_call(kind: str, command: str, call_id: str = "", **more: str) -> dict[str, Any]:
    """Return a hook call of one tool call of the recorded session."""
    _, _, before, after, *_ = hook_calls("healthy")
    call = dict(after if kind == "PostToolUse" else before)
    call |= {"hook_event_name": kind, "tool_name": "Bash", "tool_input": {"command": command}} | more
    call.pop("tool_use_id")
    return call | ({"tool_use_id": call_id} if call_id else {})


FIRST_CALL = (hook_call("PreToolUse", "make docs", "call-a"),)
FIRST_REQUEST = (*FIRST_CALL, hook_call("PermissionRequest", "make docs"))
FIRST_CALL_END = hook_call("PostToolUse", "make docs", "call-a")
OTHER_TOOL = {"tool_name": "WebFetch"}
SUBAGENT_FIELDS = {"agent_id": "a1", "agent_type": "general-purpose"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(FIRST_REQUEST, (FIRST_CALL_END,), id="another-request-was-granted"),
        pytest.param(FIRST_CALL, (FIRST_CALL_END,), id="call-that-needed-none-ends"),
        pytest.param(
            (hook_call("PreToolUse", "", "call-a", **OTHER_TOOL),),
            (hook_call("PostToolUse", "", "call-a", **OTHER_TOOL),),
            id="call-of-another-tool-ends",
        ),
        pytest.param(
            (),
            (
                hook_call("PreToolUse", "ls", "call-a", **SUBAGENT_FIELDS),
                hook_call("PostToolUse", "ls", "call-a", **SUBAGENT_FIELDS),
            ),
            id="sub-agent-works-on",
        ),
    ],
)
async def test_permission_request_waits_while_other_calls_go_on(
    running: RunningService, before: tuple[dict[str, Any], ...], after: tuple[dict[str, Any], ...]
) -> None:
    """B93: an agent that waits for its user is not stalled, whatever its other calls do."""
    start, prompt, *_ = hook_calls("healthy")
    result = (
        hook_call("PreToolUse", "rm -rf build", "call-b"),
        hook_call("PermissionRequest", "rm -rf build"),
    )
    async with telemetry_client(running) as telemetry:
        for call in (start, prompt, *before, *result):
            assert (await telemetry.post(HOOK, json=call)).json() == {}
        assert waiting_reason(running) == "user_input"

        for call in after:
            assert (await telemetry.post(HOOK, json=call)).json() == {}

    assert waiting_reason(running) == "user_input"


async def test_answer_to_one_request_leaves_the_other_open(tmp_path: Path) -> None:
    """B93: an answer belongs to the request with its id; other requests keep waiting."""
    start, prompt, *_ = hook_calls("healthy")
    commands = ("make docs", "rm -rf build")
    async with serving(answering_settings(tmp_path)) as running, telemetry_client(running) as telemetry:
        for call in (start, prompt, *(hook_call("PreToolUse", command, command) for command in commands)):
            await telemetry.post(HOOK, json=call)
        questions = [
            asyncio.create_task(telemetry.post(HOOK, json=hook_call("PermissionRequest", command)))
            for command in commands
        ]
        pending_requests = running.service.permissions.open_requests
        await until(lambda: len(pending_requests()) == 2, "both requests are pending")
        [first] = [
            pending_request
            for pending_request in pending_requests()
            if pending_request.question == "Bash: make docs"
        ]

        async with httpx.AsyncClient(base_url=running.url, verify=False, trust_env=False) as http:
            path = f"/api/permissions/{first.request_id}/answer"
            answer = await http.post(path, json={"decision": "allow", "by": "ada"})
        given = (await questions[0]).json()

        assert answer.status_code == 202
        assert given["hookSpecificOutput"]["decision"]["behavior"] == "allow"
        assert [pending_request.question for pending_request in pending_requests()] == ["Bash: rm -rf build"]
        assert waiting_reason(running) == "user_input"
        questions[1].cancel()
