"""Control and recovery of workers inside the service: a control, or respawner, for each of its runtimes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from queenright.runtime.agent_runtime import AgentRuntime
from queenright.server.agents.manager import AgentManager

T = TypeVar("T")


@dataclass(frozen=True)
class ServiceRuntimes:
    """The current runtimes of the service: its own, then those of the loaded agents."""

    own: AgentRuntime
    agents: AgentManager

    def __iter__(self) -> Iterator[AgentRuntime]:
        """Yield the runtimes."""
        yield self.own
        yield from self.agents.runtimes()


@dataclass(frozen=True)
class EachRuntime(Generic[T]):
    """
    Controls or respawners: one per runtime, made at each iteration, then those of workers elsewhere.

    Args:
        make: Makes a control or a respawner of a runtime.
        runtimes: The runtimes at the time of the iteration: agents are loaded and unloaded.
        elsewhere: Those of workers outside the service.
    """

    make: Callable[[AgentRuntime], T]
    runtimes: Iterable[AgentRuntime]
    elsewhere: tuple[T, ...] = ()

    def __iter__(self) -> Iterator[T]:
        """Yield them, those of the service's own runtimes first."""
        yield from map(self.make, self.runtimes)
        yield from self.elsewhere
