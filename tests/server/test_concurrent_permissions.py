"""A permission request while other calls of the session go on: it waits until it is answered itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenright.server.serving import RunningService, serving
from tests.server.test_hooks import HOOK, calls
from tests.server.test_permissions import answering, client_of, waiting_of
from tests.waiting import until


def call_of(kind: str, command: str, call_id: str = "", **more: str) -> dict[str, Any]:
    """Return a hook call of one tool call of the recorded session."""
    _, _, before, after, *_ = calls("healthy")
    call = dict(after if kind == "PostToolUse" else before)
    call |= {"hook_event_name": kind, "tool_name": "Bash", "tool_input": {"command": command}} | more
    call.pop("tool_use_id")
    return call | ({"tool_use_id": call_id} if call_id else {})


FIRST_CALL = (call_of("PreToolUse", "make docs", "call-a"),)
FIRST_REQUEST = (*FIRST_CALL, call_of("PermissionRequest", "make docs"))
FIRST_CALL_END = call_of("PostToolUse", "make docs", "call-a")
OTHER_TOOL = {"tool_name": "WebFetch"}
OF_A_SUBAGENT = {"agent_id": "a1", "agent_type": "general-purpose"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(FIRST_REQUEST, (FIRST_CALL_END,), id="another-request-was-granted"),
        pytest.param(FIRST_CALL, (FIRST_CALL_END,), id="call-that-needed-none-ends"),
        pytest.param(
            (call_of("PreToolUse", "", "call-a", **OTHER_TOOL),),
            (call_of("PostToolUse", "", "call-a", **OTHER_TOOL),),
            id="call-of-another-tool-ends",
        ),
        pytest.param(
            (),
            (
                call_of("PreToolUse", "ls", "call-a", **OF_A_SUBAGENT),
                call_of("PostToolUse", "ls", "call-a", **OF_A_SUBAGENT),
            ),
            id="sub-agent-works-on",
        ),
    ],
)
async def test_permission_request_waits_while_other_calls_go_on(
    running: RunningService, before: tuple[dict[str, Any], ...], after: tuple[dict[str, Any], ...]
) -> None:
    """B93: an agent that waits for its user is not a stall, whatever its other calls do."""
    start, prompt, *_ = calls("healthy")
    result = (
        call_of("PreToolUse", "rm -rf build", "call-b"),
        call_of("PermissionRequest", "rm -rf build"),
    )
    async with client_of(running) as telemetry:
        for call in (start, prompt, *before, *result):
            assert (await telemetry.post(HOOK, json=call)).json() == {}
        assert waiting_of(running) == "user_input"

        for call in after:
            assert (await telemetry.post(HOOK, json=call)).json() == {}

    assert waiting_of(running) == "user_input"


async def test_answer_to_one_request_leaves_the_other_open(tmp_path: Path) -> None:
    """B93: an answer is for the request with that id; what else is asked at the time waits on."""
    start, prompt, *_ = calls("healthy")
    commands = ("make docs", "rm -rf build")
    async with serving(answering(tmp_path)) as running, client_of(running) as telemetry:
        for call in (start, prompt, *(call_of("PreToolUse", command, command) for command in commands)):
            await telemetry.post(HOOK, json=call)
        questions = [
            asyncio.create_task(telemetry.post(HOOK, json=call_of("PermissionRequest", command)))
            for command in commands
        ]
        pending_requests = running.service.permissions.open_requests
        await until(lambda: len(pending_requests()) == 2, "both are asked")
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
        assert waiting_of(running) == "user_input"
        questions[1].cancel()
