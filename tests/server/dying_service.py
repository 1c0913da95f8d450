"""A service that takes in what it is given on standard input and is killed outright (`test_restart.py`)."""

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


async def main(settings: Settings) -> None:
    service = await build(settings)
    await service.start()
    await service.ingest([event_of(values) for values in json.load(sys.stdin)])
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(Settings.model_validate_json(Path(sys.argv[1]).read_text("utf-8"))))
