"""The services of the runtime that streams use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from queenright.runtime.execution import Execution
from queenright.runtime.heartbeats import HeartbeatSender
from queenright.runtime.services import RuntimeServices
from queenright.runtime.sessions import SessionResolver


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamServices(RuntimeServices):
    """The runtime's services, as streams use them."""

    heartbeats: HeartbeatSender
    sessions: SessionResolver
    remember: Callable[[Execution], None]
    """Called with each requested run."""
