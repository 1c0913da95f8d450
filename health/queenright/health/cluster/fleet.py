"""State that a service shares with the services that monitor other parts of the fleet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from queenright.health.cluster.switch_state import SwitchState
from queenright.health.findings import WorkerKey
from queenright.instrumentation.identity import new_id

Change = Callable[[Any], Any]
"""Returns the new value of a name for the current one, which is None at first."""


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
    """The data of all services about a storm, for a service that starts."""

    inherited: Sequence[WorseWorker] = ()
    """The workers that got worse, of those that the service watches now instead of another."""
    elsewhere: Sequence[WorseWorker] = ()
    """Those of the other services."""
    storm: tuple[str, float] | None = None
    """The id and the beginning of the storm that services are in."""


class FleetState:
    """The state of a fleet with a single service, which shares nothing."""

    is_shared = False
    """Whether other services watch parts of the fleet. If not, the other methods have no effect."""

    def new_storm_id(self) -> str:
        """Return the id of a storm that begins now, the same for all services."""
        return new_id()

    def spent_elsewhere(self, agent_id: str, day: int) -> tuple[float, float]:
        """Return the spending of a day that other services counted: by the agent, and by all agents."""
        return 0.0, 0.0

    def failing_elsewhere(self) -> Mapping[str, Collection[WorkerKey]]:
        """Return the workers of other services with each failure; see ``shared_cause``."""
        return {}

    async def read_storm(self) -> SharedStorm:
        """
        Return the data of all services about a storm.

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
            name: Its name.
            change: Returns the new value; if it returns what it was given, nothing is written.

        Raises:
            StoreError: The database cannot be written.
        """
        raise NotImplementedError
