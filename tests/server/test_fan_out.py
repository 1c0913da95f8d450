"""B131: the events of many workers are observed in parts, in the order of the log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.build import build
from queenright.server.settings import Settings

START_TIME = 1_700_000_000.0


def make_steps(count: int, first_number: int) -> list[AgentEvent]:
    """Return steps of one worker, numbered from ``first_number``."""
    return [
        AgentEvent(
            type=EventType.STEP_COMPLETED,
            time=START_TIME,
            agent_id="bee",
            session_id="bee-1",
            data={"index": number, "verdict": "ACCEPT"},
        )
        for number in range(first_number, first_number + count)
    ]


async def test_parts_of_two_requests_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    B131: the event loop is free between parts, and a worker's events are still observed in the order of the
    log.
    """
    service = await build(Settings(storage=tmp_path), clock=lambda: START_TIME)
    await service.start()
    try:
        observed_parts: list[list[int]] = []
        fan_out = service.bus.fan_out

        def record_part(*events: AgentEvent) -> None:
            indexes = [event.data["index"] for event in events if event.type is EventType.STEP_COMPLETED]
            if indexes:
                observed_parts.append(indexes)
            fan_out(*events)

        monkeypatch.setattr(service.bus, "fan_out", record_part)
        await asyncio.gather(service.ingest(make_steps(700, 0)), service.ingest(make_steps(700, 700)))
    finally:
        await service.stop()

    assert [index for observed_part in observed_parts for index in observed_part] == list(range(1400))
    assert max(len(observed_part) for observed_part in observed_parts) <= 256
