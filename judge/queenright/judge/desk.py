"""What judge and queen share: the worker in question, and the tool that shows it to a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from queenright.health.monitor import HealthMonitor, WorkerHealth
from queenright.health.summary import summarise
from queenright.judge.monitoring_tools import LiveWorkers, Lookup, SummaryArguments, summary_tool
from queenright.runtime.events import Clock
from queenright.runtime.tooling.tools import Tool


class WorkerDesk:
    """
    The one worker that is being judged or triaged.

    Args:
        monitor: Knows the workers.
        clock: Now.
    """

    def __init__(self, monitor: HealthMonitor, clock: Clock) -> None:
        self._monitor = monitor
        self._clock = clock
        self._lookup = Lookup(LiveWorkers(monitor), clock)

    def look_at(self, agent_id: str, session_id: str) -> None:
        """Say which worker is in question."""
        self._lookup.key = (agent_id, session_id)

    @property
    def health(self) -> WorkerHealth | None:
        """How the worker in question is now; None if it is known no more."""
        return self._monitor.get(*self._lookup.key)

    def summary(self, last_n_steps: int = 20) -> dict[str, Any] | None:
        """Return the summary of the worker in question, or None if it is known no more."""
        health = self.health
        return None if health is None else summarise(health, self._clock(), last_n_steps)

    async def show(self, given: SummaryArguments) -> str:
        """Return the summary of a worker for a model: of the one in question if it names none."""
        return await self._lookup.show(given)

    def tool(self) -> Tool:
        """Return ``get_worker_health_summary``."""
        return summary_tool(self.show)


def shared_tool(desks: Mapping[str, WorkerDesk]) -> Tool:
    """Return ``get_worker_health_summary`` for a graph whose nodes, by id, have a desk each."""

    async def show(given: SummaryArguments, *, node_id: str) -> str:
        return await desks[node_id].show(given)

    return replace(summary_tool(next(iter(desks.values())).show), run=show, context=("node_id",))
