"""A control and a respawner for each runtime of the service, to stop and recover the workers that it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from queenright.runtime.agent_runtime import AgentRuntime
from queenright.server.agents.manager import AgentManager

T = TypeVar("T")


@dataclass(frozen=True)
class ServiceRuntimes:
    """Iterates over the service's own runtime, then over those of the agents that are loaded now."""

    own: AgentRuntime
    agents: AgentManager

    def __iter__(self) -> Iterator[AgentRuntime]:
        """Yield the runtimes."""
        yield self.own
        yield from self.agents.list_runtimes()


@dataclass(frozen=True)
class EachRuntime(Generic[T]):
    """
    Iterates over controls or respawners: one for each runtime, then those for workers outside the service.

    Args:
        make: Makes the control or respawner for a runtime.
        runtimes: The runtimes. They are read at each iteration, because agents are loaded and unloaded.
        external: The controls or respawners for workers outside the service.
    """

    make: Callable[[AgentRuntime], T]
    runtimes: Iterable[AgentRuntime]
    external: tuple[T, ...] = ()

    def __iter__(self) -> Iterator[T]:
        """Yield the controls or respawners, those of the service's runtimes first."""
        yield from map(self.make, self.runtimes)
        yield from self.external
