"""A sub-agent of a coding agent that works on in the background after the turn of its parent has ended."""

from __future__ import annotations

from queenright.server.serving import RunningService
from tests.server.test_concurrent_permissions import OF_A_SUBAGENT, call_of
from tests.server.test_hooks import HOOK, calls
from tests.server.test_permissions import client_of, waiting_of


async def test_session_waits_for_its_person_once_its_background_subagent_has_ended(
    running: RunningService,
) -> None:
    """B89: its turn is over, and so is the sub-agent's work: an idle prompt is not a stall."""
    start, prompt, *_ = calls("healthy")
    ended = {"session_id": start["session_id"], "cwd": start["cwd"]}
    async with client_of(running) as telemetry:
        for call in (start, prompt, ended | {"hook_event_name": "Stop"}):
            assert (await telemetry.post(HOOK, json=call)).status_code == 200
        assert waiting_of(running) == "user_input"

        for call in (
            call_of("PreToolUse", "ls", "call-x", **OF_A_SUBAGENT),
            call_of("PostToolUse", "ls", "call-x", **OF_A_SUBAGENT),
            ended | {"hook_event_name": "SubagentStop"} | OF_A_SUBAGENT,
        ):
            assert (await telemetry.post(HOOK, json=call)).status_code == 200

    assert waiting_of(running) == "user_input"
