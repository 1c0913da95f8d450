"""The Python client of a running service: asynchronous and synchronous."""

from __future__ import annotations

from typing import TYPE_CHECKING

from queenright.instrumentation.lazy_imports import lazy_attributes

if TYPE_CHECKING:
    from queenright.api.events import Event
    from queenright.client.asynchronous.client import AsyncQueenright
    from queenright.client.asynchronous.stream import AsyncEventStream
    from queenright.client.errors import InvalidAddressError, RequestRejectedError, UnreachableError
    from queenright.client.notices import Notice
    from queenright.client.synchronous import EventStream, Queenright

__all__ = [
    "AsyncEventStream",
    "AsyncQueenright",
    "Event",
    "EventStream",
    "InvalidAddressError",
    "Notice",
    "Queenright",
    "RequestRejectedError",
    "UnreachableError",
]

if not TYPE_CHECKING:
    # Each is imported on first use, so that a command starts faster.
    __getattr__, __dir__ = lazy_attributes(
        __name__,
        {
            "AsyncEventStream": "asynchronous.stream",
            "AsyncQueenright": "asynchronous.client",
            "Event": "asynchronous.stream",
            "EventStream": "synchronous",
            "Notice": "notices",
            "Queenright": "synchronous",
        }
        | dict.fromkeys(("InvalidAddressError", "RequestRejectedError", "UnreachableError"), "errors"),
    )
