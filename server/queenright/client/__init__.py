"""The Python client of a running service, in two forms: to be awaited, and not."""

from __future__ import annotations

from queenright.api.events import Event
from queenright.client.asynchronous.client import AsyncQueenright
from queenright.client.asynchronous.stream import AsyncEventStream
from queenright.client.errors import Misaddressed, Refused, Unreachable
from queenright.client.notices import Notice
from queenright.client.synchronous.client import Queenright
from queenright.client.synchronous.stream import EventStream

__all__ = [
    "AsyncEventStream",
    "AsyncQueenright",
    "Event",
    "EventStream",
    "Misaddressed",
    "Notice",
    "Queenright",
    "Refused",
    "Unreachable",
]
