"""A client of event streams that follows only the standard for server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import httpx

from tests.waiting import until


@dataclass
class Block:
    """One message of a stream: the lines between two empty lines."""

    event: str = "message"
    id: str | None = None
    data: Any = None
    comment: str = ""
    retry: str = ""


def parse_blocks(stream_text: str) -> list[Block]:
    """Return the complete blocks in the text of a stream."""
    return [_parse_block(block_text) for block_text in stream_text.split("\n\n")[:-1]]


def _parse_block(block_text: str) -> Block:
    block = Block()
    for line in block_text.split("\n"):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                block.event = value
            case "id":
                block.id = value
            case "data":
                block.data = json.loads(value)
            case "retry":
                block.retry = value
            case _:
                block.comment = value
    return block


@dataclass
class Follower:
    """A client that follows one stream and stores the whole text of it."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    text: str = ""
    has_ended: bool = False

    @property
    def blocks(self) -> list[Block]:
        return parse_blocks(self.text)

    @property
    def events(self) -> list[Block]:
        return [block for block in self.blocks if block.data is not None]

    @property
    def ids(self) -> list[str]:
        """Return the ids after which a client can resume, in the order of arrival."""
        return [block.id for block in self.events if block.id is not None]

    @property
    def last_id(self) -> str | None:
        return next((block.id for block in reversed(self.blocks) if block.id is not None), None)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow())
        await self.until(lambda: "\n\n" in self.text, "the stream has started")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, condition: Callable[[], object], description: str) -> None:
        def is_condition_met() -> object:
            if self._task.done() and not self._task.cancelled() and self._task.exception():
                raise AssertionError(f"{description}: {self._task.exception()!r}")
            return condition()

        await until(is_condition_met, description)

    async def _follow(self) -> None:
        async with (
            httpx.AsyncClient(trust_env=False, timeout=None) as http,
            http.stream("GET", self.url, headers=self.headers) as answer,
        ):
            assert answer.status_code == 200, (await answer.aread()).decode()
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for chunk in answer.aiter_text():
                self.text += chunk
        self.has_ended = True
