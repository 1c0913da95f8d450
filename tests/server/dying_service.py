"""
A service that ingests the events on its standard input and then kills itself (used by `test_restart.py`).

The arguments are the settings file, and the number of events to ingest before a snapshot is written.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.build import build
from queenright.server.settings import Settings


def parse_event(values: dict[str, Any]) -> AgentEvent:
    return AgentEvent(**values | {"type": EventType(values["type"])})


async def main(settings: Settings, snapshot_after: int | None) -> None:
    service = await build(settings)
    await service.start()
    events = [parse_event(values) for values in json.load(sys.stdin)]
    if snapshot_after is not None:
        await service.ingest(events[:snapshot_after])
        await service.snapshots.take()
    await service.ingest(events[snapshot_after or 0 :])
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    file, *count = sys.argv[1:]
    settings = Settings.model_validate_json(Path(file).read_text("utf-8"))
    asyncio.run(main(settings, int(count[0]) if count else None))
