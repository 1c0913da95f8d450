"""The Python client of a running service, in two forms: to be awaited, and not."""

from __future__ import annotations

from queenright.client.asynchronous.client import AsyncQueenright
from queenright.client.asynchronous.stream import AsyncEventStream
from queenright.client.errors import Misaddressed, Refused, Unreachable
from queenright.client.event import Event
from queenright.client.notices import Notice

__all__ = [
    "AsyncEventStream",
    "AsyncQueenright",
    "Event",
    "Misaddressed",
    "Notice",
    "Refused",
    "Unreachable",
]
