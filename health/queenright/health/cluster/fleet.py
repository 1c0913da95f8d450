"""State that a service shares with the services that monitor other parts of the fleet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from queenright.health.cluster.switch_state import SwitchState
from queenright.health.findings import WorkerKey
from queenright.instrumentation.identity import new_id

Change = Callable[[Any], Any]
"""Returns the new value for the current value, which is None at first."""


class WorseWorker(NamedTuple):
    """A worker that got worse at ``at``, and the lifetime of its incarnation."""

    agent_id: str
    session_id: str
    at: float
    began: float
    over: float | None

    @property
    def key(self) -> WorkerKey:
        """The agent and the session."""
        return self.agent_id, self.session_id


class SharedStorm(NamedTuple):
    """The data about a storm from all services, for a service that is starting."""

    inherited: Sequence[WorseWorker] = ()
    """The workers that got worse and that this service has taken over from another service."""
    elsewhere: Sequence[WorseWorker] = ()
    """The workers of other services that got worse."""
    storm: tuple[str, float] | None = None
    """The id of the current storm, and when it began (seconds since the epoch); None if there is none."""


class FleetState:
    """The state of a fleet with a single service, which shares nothing."""

    is_shared = False
    """Whether other services monitor parts of the fleet. If not, the methods return local or empty values."""

    def new_storm_id(self) -> str:
        """Return the id of a storm that begins now. All services get the same id."""
        return new_id()

    def spent_elsewhere(self, agent_id: str, day: int) -> tuple[float, float]:
        """Return the US dollars that other services counted on a day: for the agent, and for all agents."""
        return 0.0, 0.0

    def failing_elsewhere(self) -> Mapping[str, Collection[WorkerKey]]:
        """Return the failing workers of other services, by failure; see ``shared_cause``."""
        return {}

    async def read_storm(self) -> SharedStorm:
        """
        Return the data about a storm from all services.

        Raises:
            StoreError: The database cannot be read.
        """
        return SharedStorm()

    async def read_emergency_stop(self) -> SwitchState:
        """
        Return the emergency stop of the fleet.

        Raises:
            StoreError: The database cannot be read.
        """
        raise NotImplementedError

    async def update(self, name: str, change: Change) -> Any:
        """
        Change a value that all services share, and return the new one.

        Args:
            name: The name of the value.
            change: Returns the new value. If it returns its argument, nothing is written.

        Raises:
            StoreError: The database cannot be written.
        """
        raise NotImplementedError
