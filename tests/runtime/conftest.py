import asyncio
import heapq
import itertools
from collections.abc import Sequence

import pytest

from queenright.runtime.llm.model import Message, ModelReply, OnText, ToolCall, ToolSpec
from queenright.runtime.storage.files import Disk
from tests.waiting import idle


class FakeTime:
    """A fake clock that moves only on request, and wakes sleepers in the order of their times."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self.disk = Disk()
        """Register a disk whose threads `settle` must wait for."""

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waking = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), waking))
        await waking

    async def advance(self, seconds: float) -> None:
        """Advance the clock, waking each sleeper at its time and settling after it."""
        until = self.now + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= until:
            at, _, waking = heapq.heappop(self._sleepers)
            self.now = max(self.now, at)
            if not waking.done():
                waking.set_result(None)
                await self.settle()
        self.now = until
        await self.settle()

    async def settle(self) -> None:
        """Wait until the loop is idle and no disk work is in progress."""
        await idle(lambda: self.disk.pending)


class ScriptedModel:
    """A model with scripted replies; raises exceptions among them, and records its requests."""

    name = "scripted"

    def __init__(self, replies: Sequence[ModelReply | Exception] = ()) -> None:
        self.replies = list(replies)
        self.requests: list[list[Message]] = []
        self.offered: list[list[str]] = []

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        self.requests.append(list(messages))
        self.offered.append([tool.name for tool in tools])
        reply = self.replies.pop(0) if self.replies else ModelReply(text="nothing more to say")
        if isinstance(reply, Exception):
            raise reply
        return reply


def tool_call_reply(name: str, arguments: str, call_id: str = "c1") -> ModelReply:
    return ModelReply(tool_calls=(ToolCall(call_id, name, arguments),))


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()
