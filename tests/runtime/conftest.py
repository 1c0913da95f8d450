import asyncio
import heapq
import itertools
from collections.abc import Sequence

import pytest

from queenright.runtime.llm.model import Message, ModelReply, OnText, ToolCall, ToolSpec
from queenright.runtime.storage.files import Disk


class FakeTime:
    """A clock that stands until it is moved, and sleepers that wake as it passes them."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self.disk = Disk()
        """For whoever does disk work in threads: `settle` waits for it."""

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
        """Move on, waking each sleeper at its time and letting what it starts settle."""
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
        """Let everything come to rest: the loop idle, and no disk work under way."""
        quiet = 0
        while quiet < 50:
            if self.disk.pending:
                quiet = 0
                # A thread answers in its own time.
                await asyncio.sleep(0.0002)
            else:
                quiet += 1
                await asyncio.sleep(0)


class ScriptedModel:
    """Answers from a list; an exception in it is raised; what it was shown is kept."""

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


def calls(name: str, arguments: str, call_id: str = "c1") -> ModelReply:
    return ModelReply(tool_calls=(ToolCall(call_id, name, arguments),))


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()
