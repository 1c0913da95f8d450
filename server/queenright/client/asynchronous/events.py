"""What happens, as it happens."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable

from queenright.client.address import path
from queenright.client.asynchronous.group import AsyncGroup
from queenright.client.asynchronous.stream import AsyncEventStream
from queenright.client.asynchronous.transport import AsyncTransport
from queenright.client.notices import Notice


def _nobody(notice: Notice) -> None:
    """Let a notice pass."""


class AsyncEvents(AsyncGroup):
    """The events of a service; ``sleep`` waits between two tries to connect, seconds."""

    def __init__(self, ask: AsyncTransport, sleep: Callable[[float], Awaitable[object]]) -> None:
        super().__init__(ask)
        self._sleep = sleep

    def stream(
        self,
        *,
        types: Iterable[str] | str | None = None,
        agent: str | None = None,
        last_event_id: str | None = None,
        wait: bool = False,
        told: Callable[[Notice], None] = _nobody,
    ) -> AsyncEventStream:
        """
        Return the events from now on, or behind one; to be iterated over. It comes back after every break.

        Args:
            types: Of these types; ``"all"`` for every type, the service's own choice without.
            agent: Of this worker only; it need not have been heard of yet.
            last_event_id: Begin behind this event.
            wait: Whether a service that is not there yet is waited for, too.
            told: Is called with what the stream tells of itself.
        """
        if agent is not None:
            path(agent)  # a blank name is refused here, not taken for all
        asked = types if types is None or isinstance(types, str) else ",".join(types)
        return AsyncEventStream(
            self._ask,
            "/api/events",
            {"types": asked, "agent": agent},
            last_event_id=last_event_id,
            wait=wait,
            told=told,
            sleep=self._sleep,
            spread=random.random,
        )
