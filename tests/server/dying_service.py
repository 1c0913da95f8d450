"""
A service that takes in what it is given on standard input and is killed outright (`test_restart.py`).

Its arguments are the file of its settings, and how many events it takes in before it writes a snapshot.
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


def event_of(values: dict[str, Any]) -> AgentEvent:
    return AgentEvent(**values | {"type": EventType(values["type"])})


async def main(settings: Settings, before_snapshot: int | None) -> None:
    service = await build(settings)
    await service.start()
    events = [event_of(values) for values in json.load(sys.stdin)]
    if before_snapshot is not None:
        await service.ingest(events[:before_snapshot])
        await service.snapshots.take()
    await service.ingest(events[before_snapshot or 0 :])
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    file, *count = sys.argv[1:]
    settings = Settings.model_validate_json(Path(file).read_text("utf-8"))
    asyncio.run(main(settings, int(count[0]) if count else None))
