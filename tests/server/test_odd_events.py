"""Each subscriber handles events with missing or unexpected data."""

from __future__ import annotations

import asyncio
import itertools
import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queenright.api.event_text import has_feed_line
from queenright.api.events import Event
from queenright.health.vitals.vital_events import WORKER_EVENTS
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.build import build
from queenright.server.service import Service
from queenright.server.serving import RunningService
from queenright.server.views.api_models import make_feed_line
from queenright.tui.event_lines import make_event_line
from tests.server.conftest import demo_settings

NAMES = (
    "args_hash",
    "error",
    "error_type",
    "index",
    "interval",
    "model",
    "outcome",
    "reason",
    "tool",
    "verdict",
)
VALUES = st.none() | st.booleans() | st.integers(-3, 3) | st.text("a\u00e9 ", max_size=3)
EVENT_TYPES = st.lists(
    st.tuples(
        st.sampled_from(sorted(WORKER_EVENTS)),
        st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4),
    ),
    min_size=1,
    max_size=12,
)


def test_unexpected_events_of_agents_cause_no_subscriber_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each type of event that agents send is sent without data and with arbitrary data."""
    with asyncio.Runner() as runner:
        service = runner.run(start_service(tmp_path))
        numbers = itertools.count()

        @settings(suppress_health_check=list(HealthCheck))
        @given(EVENT_TYPES)
        def check_no_errors(kinds_and_data: list[tuple[EventType, dict[str, Any]]]) -> None:
            runner.run(send_and_wait(service, f"session-{next(numbers)}", kinds_and_data))
            assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]

        try:
            runner.run(send_and_wait(service, "empty", [(kind, {}) for kind in sorted(WORKER_EVENTS)]))
            check_no_errors()
        finally:
            runner.run(service.stop())


async def test_recoveries_without_an_id_cause_no_subscriber_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = await start_service(tmp_path)
    try:
        kinds = [EventType.RECOVERY_INITIATED, EventType.RECOVERY_COMPLETED, EventType.RECOVERY_FAILED]
        await send_and_wait(service, "session", [(kind, {}) for kind in kinds])
        assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    finally:
        await service.stop()


@pytest.mark.parametrize("data", [{}, {"ticket": "odd", "by": None, "came": None, "outcome": ["odd"]}])
def test_record_without_its_fields_has_an_event_line(data: dict[str, Any]) -> None:
    for kind in EventType:
        event = AgentEvent(type=kind, time=1.0, agent_id="bee", data=data)

        for brief in (True, False):
            assert make_feed_line(event, brief=brief).text, kind
        assert has_feed_line(event.type, event.data) in (True, False)
        line = make_event_line(Event.model_validate(event.to_dict()))
        assert line is None or line.text, kind


async def test_status_has_lines_for_records_without_their_fields(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    running.service.recent.extend(AgentEvent(type=kind, time=1.0, agent_id="bee") for kind in EventType)
    status = (await http.get("/api/status")).json()

    assert any("bee: health state changed" in line["text"] for line in status["feed"])


async def start_service(folder: Path) -> Service:
    service = await build(demo_settings(folder))
    await service.start()
    return service


async def send_and_wait(
    service: Service, session: str, kinds_and_data: list[tuple[EventType, dict[str, Any]]]
) -> None:
    """Ingest events, and return once each subscriber has handled them."""
    events = [
        AgentEvent(type=kind, time=service.clock(), agent_id="odd", session_id=session, data=data)
        for kind, data in kinds_and_data
    ]
    await service.ingest(events)
    await service.bus.drain()
