"""A coding agent's session continues over a restart of the service, without loss or repeats."""

from __future__ import annotations

from pathlib import Path

import pytest

from queenright.server.serving import serving
from tests.server.conftest import demo_settings
from tests.server.test_hooks import AGENT_ID, load_hook_calls
from tests.server.test_permissions import open_telemetry_client


@pytest.mark.parametrize("before", [2, 3, 9])
async def test_session_end_after_a_restart_ends_the_session(tmp_path: Path, before: int) -> None:
    """B94: the end is recognised after the restart; otherwise the session would stall."""
    *started, end = load_hook_calls("healthy")
    assert end["hook_event_name"] == "SessionEnd"
    for part in (started[:before], [end]):
        async with serving(demo_settings(tmp_path)) as running, open_telemetry_client(running) as telemetry:
            for call in part:
                await telemetry.post("/hooks/claude-code?user=ada&host=laptop", json=call)
            [worker] = running.service.monitor.of_agent(AGENT_ID)

    assert worker.vitals.has_ended
    assert worker.vitals.waiting is None
