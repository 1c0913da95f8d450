"""State that a service shares with the services that watch other parts of the fleet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from queenright.health.cluster.switch_state import SwitchState
from queenright.health.findings import WorkerKey
from queenright.instrumentation.identity import new_id

Change = Callable[[Any], Any]
"""Returns the new value of a name for the current one, which is None at first."""


class FleetState:
    """The state of a fleet with one service, which shares nothing."""

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
