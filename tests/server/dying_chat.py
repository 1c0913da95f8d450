"""A service that kills itself when the chat publishes a certain event (used by `test_chat_api.py`)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from queenright.judge.chat_log import Subject
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.build import build
from queenright.server.settings import Settings


def kill_process(event: AgentEvent) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(settings: Settings, ticket_id: str, moment: EventType) -> None:
    service = await build(settings)
    await service.start()
    service.bus.subscribe(kill_process, name="death", types={moment}, filter_node="operator_chat")
    await service.judging.chat.ask(Subject(ticket_id), "What is wrong?", by="ada")
    await asyncio.sleep(60)


if __name__ == "__main__":
    settings = Settings.model_validate_json(Path(sys.argv[1]).read_text("utf-8"))
    asyncio.run(main(settings, sys.argv[2], EventType(sys.argv[3])))
