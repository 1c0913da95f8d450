"""What streams need of the runtime that they are on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from queenright.runtime.execution import Execution
from queenright.runtime.heartbeats import Heartbeats
from queenright.runtime.parts import Surroundings
from queenright.runtime.sessions import Sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSurroundings(Surroundings):
    """What a stream needs, beyond what its executors need."""

    heartbeats: Heartbeats
    sessions: Sessions
    remember: Callable[[Execution], None]
    """Is called with each run that is requested."""
