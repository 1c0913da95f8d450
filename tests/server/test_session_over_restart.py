"""A coding agent's session continues across a restart of the service, without loss or repetition."""

from __future__ import annotations

from pathlib import Path

import pytest

from queenright.server.serving import serving
from tests.server.conftest import demo_settings
from tests.server.test_hooks import AGENT_ID, load_hook_calls
from tests.server.test_permissions import open_telemetry_client


@pytest.mark.parametrize("calls_before_restart", [2, 3, 9])
async def test_session_end_after_a_restart_ends_the_session(
    tmp_path: Path, calls_before_restart: int
) -> None:
    """B94: otherwise the session would stall."""
    *earlier_calls, session_end = load_hook_calls("healthy")
    assert session_end["hook_event_name"] == "SessionEnd"
    for calls in (earlier_calls[:calls_before_restart], [session_end]):
        async with serving(demo_settings(tmp_path)) as running, open_telemetry_client(running) as telemetry:
            for call in calls:
                await telemetry.post("/hooks/claude-code?user=ada&host=laptop", json=call)
            [worker] = running.service.monitor.of_agent(AGENT_ID)

    assert worker.vitals.has_ended
    assert worker.vitals.waiting is None
