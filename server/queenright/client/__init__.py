"""The Python client of a running service: asynchronous and synchronous."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queenright.api.events import Event
    from queenright.client.asynchronous.client import AsyncQueenright
    from queenright.client.asynchronous.stream import AsyncEventStream
    from queenright.client.errors import InvalidAddressError, RequestRejectedError, UnreachableError
    from queenright.client.notices import Notice
    from queenright.client.synchronous.client import Queenright
    from queenright.client.synchronous.stream import EventStream

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

# Each is imported on first use: nobody needs both forms, and a command starts faster.
_MODULES = {
    "AsyncEventStream": "queenright.client.asynchronous.stream",
    "AsyncQueenright": "queenright.client.asynchronous.client",
    "Event": "queenright.api.events",
    "EventStream": "queenright.client.synchronous.stream",
    "InvalidAddressError": "queenright.client.errors",
    "Notice": "queenright.client.notices",
    "Queenright": "queenright.client.synchronous.client",
    "RequestRejectedError": "queenright.client.errors",
    "UnreachableError": "queenright.client.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
