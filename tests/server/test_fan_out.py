"""B131: events of many workers at once are observed in parts, in the order of the log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.build import build
from queenright.server.settings import Settings

T = 1_700_000_000.0


def steps(count: int, first: int) -> list[AgentEvent]:
    """Return steps of one worker, numbered from ``first``."""
    return [
        AgentEvent(
            type=EventType.STEP_COMPLETED,
            time=T,
            agent_id="bee",
            session_id="bee-1",
            data={"index": number, "verdict": "ACCEPT"},
        )
        for number in range(first, first + count)
    ]


async def test_parts_of_two_requests_are_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B131: the event loop is free between parts, and a worker's events are still observed in log order."""
    service = await build(Settings(storage=tmp_path), clock=lambda: T)
    await service.start()
    try:
        parts: list[list[int]] = []
        fan_out = service.bus.fan_out

        def record_part(*events: AgentEvent) -> None:
            found = [event.data["index"] for event in events if event.type is EventType.STEP_COMPLETED]
            if found:
                parts.append(found)
            fan_out(*events)

        monkeypatch.setattr(service.bus, "fan_out", record_part)
        await asyncio.gather(service.ingest(steps(700, 0)), service.ingest(steps(700, 700)))
    finally:
        await service.stop()

    assert [index for part in parts for index in part] == list(range(1400))
    assert max(len(part) for part in parts) <= 256
