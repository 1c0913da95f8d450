"""Control and recovery of workers inside the service: a control, or respawner, for each of its runtimes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from queenright.runtime.agent_runtime import AgentRuntime

T = TypeVar("T")

Runtimes = Callable[[], Iterable[AgentRuntime]]
"""Returns the runtimes that are in the service now."""


@dataclass(frozen=True)
class EachRuntime(Generic[T]):
    """
    Controls of workers: one per runtime, made at each iteration, then those of workers elsewhere.

    Args:
        make: Makes a control or a respawner of a runtime.
        runtimes: Returns the runtimes: agents are loaded and unloaded.
        elsewhere: Controls or respawners of workers outside the service.
    """

    make: Callable[[AgentRuntime], T]
    runtimes: Runtimes
    elsewhere: tuple[T, ...] = ()

    def __iter__(self) -> Iterator[T]:
        """Yield the controls, the service's own runtimes first."""
        yield from map(self.make, self.runtimes())
        yield from self.elsewhere
