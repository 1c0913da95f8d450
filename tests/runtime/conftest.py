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
        """The disk whose pending work `settle` waits for."""

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wakeup = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), wakeup))
        await wakeup

    async def advance(self, seconds: float) -> None:
        """Advance the clock, wake each sleeper at its time, and wait until the loop is idle after each."""
        deadline = self.now + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= deadline:
            at, _, wakeup = heapq.heappop(self._sleepers)
            self.now = max(self.now, at)
            if not wakeup.done():
                wakeup.set_result(None)
                await self.settle()
        self.now = deadline
        await self.settle()

    async def settle(self) -> None:
        """Wait until the loop is idle and no disk work is in progress."""
        await idle(lambda: self.disk.pending)


class ScriptedModel:
    """A model with scripted replies that records its requests. An exception among the replies is raised."""

    name = "scripted"

    def __init__(self, replies: Sequence[ModelReply | Exception] = ()) -> None:
        self.replies = list(replies)
        self.requests: list[list[Message]] = []
        self.offered_tools: list[list[str]] = []

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        self.requests.append(list(messages))
        self.offered_tools.append([tool.name for tool in tools])
        reply = self.replies.pop(0) if self.replies else ModelReply(text="nothing more to say")
        if isinstance(reply, Exception):
            raise reply
        return reply


def tool_call_reply(name: str, arguments: str, call_id: str = "c1") -> ModelReply:
    return ModelReply(tool_calls=(ToolCall(call_id, name, arguments),))


@pytest.fixture
def fake_time() -> FakeTime:
    return FakeTime()
