"""A background sub-agent that keeps running after its parent's turn has ended."""

from __future__ import annotations

from queenright.server.serving import RunningService
from tests.server.test_concurrent_permissions import SUBAGENT_FIELDS, make_hook_call
from tests.server.test_hooks import HOOK_PATH, load_hook_calls
from tests.server.test_permissions import get_waiting_reason, open_telemetry_client


async def test_session_waits_for_user_after_background_subagent_ends(
    running: RunningService,
) -> None:
    """B89: the turn is over and the sub-agent has finished, so an idle prompt is not a stall."""
    session_start, prompt, *_ = load_hook_calls("healthy")
    session_fields = {"session_id": session_start["session_id"], "cwd": session_start["cwd"]}
    async with open_telemetry_client(running) as telemetry:
        for call in (session_start, prompt, session_fields | {"hook_event_name": "Stop"}):
            assert (await telemetry.post(HOOK_PATH, json=call)).status_code == 200
        assert get_waiting_reason(running) == "user_input"

        for call in (
            make_hook_call("PreToolUse", "ls", "call-x", **SUBAGENT_FIELDS),
            make_hook_call("PostToolUse", "ls", "call-x", **SUBAGENT_FIELDS),
            session_fields | {"hook_event_name": "SubagentStop"} | SUBAGENT_FIELDS,
        ):
            assert (await telemetry.post(HOOK_PATH, json=call)).status_code == 200

    assert get_waiting_reason(running) == "user_input"
