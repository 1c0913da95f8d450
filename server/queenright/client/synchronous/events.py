"""The event stream."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from queenright.client.address import build_path
from queenright.client.notices import Notice
from queenright.client.synchronous.resource import Resource
from queenright.client.synchronous.stream import EventStream
from queenright.client.synchronous.transport import Transport


def _ignore(notice: Notice) -> None:
    """Ignore a notice."""


class Events(Resource):
    """The events of a service; ``sleep`` waits between two attempts to connect."""

    def __init__(self, transport: Transport, sleep: Callable[[float], object]) -> None:
        super().__init__(transport)
        self._sleep = sleep

    def stream(
        self,
        *,
        types: Iterable[str] | str | None = None,
        agent: str | None = None,
        last_event_id: str | None = None,
        wait: bool = False,
        on_notice: Callable[[Notice], None] = _ignore,
    ) -> EventStream:
        """
        Return an iterator over events from now on. It reconnects after every break.

        Args:
            types: Event types; ``"all"`` for every type. Default: chosen by the service.
            agent: Only events of this worker, which need not exist yet.
            last_event_id: Start after this event.
            wait: Also wait for a service that does not respond yet.
            on_notice: Called with notices about the stream itself.
        """
        if agent is not None:
            build_path(agent)  # raises for a blank name, which the service would take for all workers
        type_list = types if types is None or isinstance(types, str) else ",".join(types)
        return EventStream(
            self._transport,
            "/api/events",
            {"types": type_list, "agent": agent},
            last_event_id=last_event_id,
            wait=wait,
            on_notice=on_notice,
            sleep=self._sleep,
            jitter=random.random,
        )
