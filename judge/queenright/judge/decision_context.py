"""The context that the judge, queen, orchestrator and chat share: workers, tickets, clocks and read tools."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from opentelemetry.trace import Tracer

from queenright.health.findings import WorkerKey
from queenright.health.monitoring.monitor import HealthMonitor, WorkerHealth
from queenright.health.monitoring.worker_summary import summarise
from queenright.health.settings import HealthSettings
from queenright.health.ticket_service import TicketService
from queenright.judge.metrics import JudgeMetrics
from queenright.judge.models import AssignedModel
from queenright.judge.monitoring_tools import SummaryArguments, show_summary, summary_tool
from queenright.runtime.deadline import Sleep
from queenright.runtime.events import Clock
from queenright.runtime.graphs.graph import NodeSpec
from queenright.runtime.tooling.tools import Tool

MAX_TURNS: Final = 8
"""The model answers per visit: enough to call every read tool and then decide. The budget limits the cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionContext:
    """
    Everything that the judge, queen and orchestrator need for their decisions. There is one per service.

    Args:
        read_tools: Read-only tools in addition to the health summary, for example for metrics and traces.
    """

    monitor: HealthMonitor
    tickets: TicketService
    settings: HealthSettings
    metrics: JudgeMetrics
    tracer: Tracer
    clock: Clock
    sleep: Sleep
    read_tools: tuple[Tool, ...] = ()

    def summary(self, key: WorkerKey) -> dict[str, Any] | None:
        """Return the health summary of a worker, or None if the worker is unknown."""
        health = self.monitor.get(*key)
        return None if health is None else summarise(health, self.clock())

    def open_case(self) -> Case:
        """
        Return a new case. Each graph has its own, because graphs work on different workers at the same time.
        """
        return Case(self)


class Case:
    """The worker that a graph currently decides about."""

    def __init__(self, context: DecisionContext) -> None:
        self._context = context
        self._key: WorkerKey = ("", "")

    def select(self, key: WorkerKey) -> None:
        """Select the worker to decide about."""
        self._key = key

    @property
    def health(self) -> WorkerHealth | None:
        """The worker's health; None if the worker is no longer known."""
        return self._context.monitor.get(*self._key)

    def summary(self) -> dict[str, Any] | None:
        """Return the worker's health summary, or None if the worker is no longer known."""
        return self._context.summary(self._key)

    def tool(self) -> Tool:
        """Return the tool ``get_worker_health_summary``, which shows the selected worker by default."""
        return summary_tool(self._show)

    async def _show(self, arguments: SummaryArguments) -> str:
        health = self._find(arguments.agent_id or self._key[0], arguments.session_id)
        return show_summary(health, self._context.clock(), arguments.last_n_steps)

    def _find(self, agent_id: str, session_id: str) -> WorkerHealth | None:
        """Return a worker, or None if it is unknown, or has ended and the model did not name its session."""
        if session_id in ("", "auto"):
            session_id = self._key[1] if agent_id == self._key[0] else ""
        health = self._context.monitor.get(agent_id, session_id or None)
        return None if health is not None and health.vitals.has_ended and not session_id else health


def decision_node(
    node_id: str,
    *,
    system_prompt: str,
    output_key: str,
    decides: Iterable[str],
    reads: Iterable[str],
    model: AssignedModel,
) -> NodeSpec:
    """
    Return a node that makes one decision per visit.

    A reply without a decision ends the visit. The caller decides whether to try again.

    Args:
        output_key: The output that gets the model's text if it calls no deciding tool.
        decides: The names of the tools that end the visit.
        reads: The names of the read-only tools.
    """
    final = tuple(decides)
    return NodeSpec(
        id=node_id,
        system_prompt=system_prompt,
        tools=(*reads, *final),
        final_tools=final,
        output_keys=(output_key,),
        max_turns=MAX_TURNS,
        max_retries=0,
        model_attempts=1,
        max_messages=60,
        # This is about ten decisions. Data that is needed for longer is in the trend and in the tickets.
        max_context_tokens=8_000,
        # This is a second limit, for a model that ignores its own limit.
        model_timeout_seconds=model.settings.timeout_seconds + 5,
    )


def merge_node_tools(tools: Mapping[str, Sequence[Tool]]) -> list[Tool]:
    """
    Return the tools of a graph, given those of its nodes by node id.

    If nodes have different tools with the same name, a call goes to the tool of the node that made it.
    """
    by_role: dict[str, dict[str, Tool]] = {}
    for node_id, node_tools in tools.items():
        for tool in node_tools:
            by_role.setdefault(tool.name, {})[node_id] = tool
    return [_merge_tools(nodes) for nodes in by_role.values()]


def _merge_tools(nodes: Mapping[str, Tool]) -> Tool:
    first = next(iter(nodes.values()))
    if all(tool is first for tool in nodes.values()):
        return first

    async def run(arguments: Any, *, node_id: str, **context: object) -> Any:
        tool, context = nodes[node_id], {**context, "node_id": node_id}
        answer = tool.run(arguments, **{name: context[name] for name in tool.context})
        return await answer if inspect.isawaitable(answer) else answer

    names = {name for tool in nodes.values() for name in tool.context} | {"node_id"}
    return replace(first, run=run, context=tuple(sorted(names)))
