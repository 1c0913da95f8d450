"""What judge and queen share: the worker in question, and the tool that shows it to a model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
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


def by_node(tools: Mapping[str, Sequence[Tool]]) -> list[Tool]:
    """
    Return the tools of a graph, given those of its nodes by id.

    Where nodes have tools of one name that are not the same, a call goes to that of the node it came from.
    """
    named: dict[str, dict[str, Tool]] = {}
    for node_id, its_tools in tools.items():
        for tool in its_tools:
            named.setdefault(tool.name, {})[node_id] = tool
    return [_one(nodes) for nodes in named.values()]


def _one(nodes: Mapping[str, Tool]) -> Tool:
    first = next(iter(nodes.values()))
    if all(tool is first for tool in nodes.values()):
        return first

    async def run(given: Any, *, node_id: str, **around: object) -> Any:
        tool, around = nodes[node_id], {**around, "node_id": node_id}
        answer = tool.run(given, **{name: around[name] for name in tool.context})
        return await answer if inspect.isawaitable(answer) else answer

    context = {name for tool in nodes.values() for name in tool.context} | {"node_id"}
    return replace(first, run=run, context=tuple(sorted(context)))
