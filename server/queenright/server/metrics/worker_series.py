"""
The series of workers on the service's ``/metrics``, for agents that do not serve their own metrics.

Counters follow the events, after the monitor has processed them. Gauges are read from the monitor on each
scrape. A worker's own process serves the same metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from queenright.health.findings import FindingKind
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.vitals.tool_calls import is_failed_tool_call
from queenright.health.vitals.vital_facts import clean_display_name, count_or_zero, parse_dollars
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.instrumentation.metrics import VERDICTS, AgentSeries, WorkerFamilies
from queenright.instrumentation.names import ToolOutcome
from queenright.runtime.events import AgentEvent, Clock, EventType

KEPT_SECONDS: Final = 3600.0
"""
Seconds for which an agent's counters stay after its last run.

This makes runs that are shorter than a scrape interval visible, and later runs continue the counters.
"""


@dataclass(slots=True)
class _Agent:
    """An agent with series, or the one that represents all agents above the limit."""

    series: AgentSeries
    framework: str = ""
    version: str = ""
    waiting: frozenset[str] = frozenset()
    idle_since: float | None = None
    """When a scrape first found no open run; None while it has one."""
    failures: dict[str, str] = field(default_factory=dict)
    """The last error of each session, so that the end of the step or run does not count it again."""

    def count_failure(self, session: str, error_type: str) -> None:
        if self.failures.get(session) != error_type:
            self.failures[session] = error_type
            self.series.count_error(error_type)


class WorkerSeries(Collector):
    """
    Feeds the worker families of the service's registry.

    Args:
        registry: The registry.
        workers: Returns the current workers.
        find: Returns a worker by agent and session, or None.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        workers: Callable[[], Iterable[WorkerHealth]],
        find: Callable[[str, str], WorkerHealth | None],
        clock: Clock,
    ) -> None:
        self._find = find
        self._workers = workers
        self._clock = clock
        self._agents: dict[str, _Agent] = {}
        self._other: _Agent | None = None
        registry.register(self)  # collected before the families, so that their gauges are up to date
        # The service has its own counter of dropped telemetry.
        self._families = WorkerFamilies.of(registry, is_service=True)

    def count(self, event: AgentEvent) -> None:
        """Count an event that the monitor has processed."""
        handler = _HANDLERS.get(event.type)
        if handler is None:
            return
        worker = self._find(event.agent_id, event.session_id)
        if worker is not None and not worker.vitals.metrics_served:
            handler(self._get_agent(event.agent_id), event, event.data, worker.vitals)

    def describe(self) -> Iterable[Metric]:
        """Return nothing: the families are registered separately."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Update the gauges. Their families are collected next and have the samples."""
        now = self._clock()
        runs: dict[str, list[VitalSigns]] = {}
        for worker in self._workers():
            vitals = worker.vitals
            if vitals.ended_at is None and not vitals.metrics_served:
                runs.setdefault(vitals.agent_id, []).append(vitals)
        folded_runs: list[VitalSigns] = []
        for agent_id, vitals_list in runs.items():
            agent = self._get_agent(agent_id)
            if agent is self._other:
                folded_runs += vitals_list
            else:
                _set_gauges(agent, vitals_list)
        for agent_id, agent in list(self._agents.items()):
            if agent_id not in runs:
                self._update_idle_agent(agent_id, agent, now)
        if self._other is not None:
            if folded_runs:
                _set_gauges(self._other, folded_runs)
            else:
                self._other.series.remove_gauges()
        return ()

    def _get_agent(self, agent_id: str) -> _Agent:
        """Return the agent with its series or, above the limit, the one that represents all others."""
        agent = self._agents.get(agent_id)
        if agent is not None:
            return agent
        if self._families.is_full:
            self._evict_idle_agent()
        series = self._families.acquire(agent_id)
        if series.agent == agent_id:
            agent = self._agents[agent_id] = _Agent(series)
            return agent
        if self._other is None:
            self._other = _Agent(series)
        else:
            self._families.release(series)  # `other` was acquired before
        return self._other

    def _evict_idle_agent(self) -> None:
        """Drop the agent whose last run ended longest ago, if any."""
        idle_agents = [
            (agent.idle_since, agent_id)
            for agent_id, agent in self._agents.items()
            if agent.idle_since is not None
        ]
        if idle_agents:
            self._families.release(self._agents.pop(min(idle_agents)[1]).series)

    def _update_idle_agent(self, agent_id: str, agent: _Agent, now: float) -> None:
        if agent.idle_since is None:
            agent.idle_since = now
            agent.waiting = frozenset()
            agent.failures.clear()
            agent.series.remove_gauges()
        elif now - agent.idle_since >= KEPT_SECONDS:
            del self._agents[agent_id]
            self._families.release(agent.series)


def _set_gauges(agent: _Agent, runs: list[VitalSigns]) -> None:
    """Set the gauges of an agent from its most recent run and its run with the most bad steps."""
    series = agent.series
    agent.idle_since = None
    # Use the monitor's base times, which exclude downtime of the service from the worker's silence.
    series.activity(max(max(v.last_activity, v.clock_base) for v in runs))
    series.progress(max(max(v.progress_from or 0.0, v.clock_base) for v in runs))
    # A worker that sends heartbeats has its start time until the first heartbeat, as in its own process.
    heartbeat_times = [
        max(v.last_heartbeat or 0.0, v.clock_base)
        for v in runs
        if v.last_heartbeat is not None or v.heartbeat_interval is not None
    ]
    if last_heartbeat := max(heartbeat_times, default=None):
        series.heartbeat(last_heartbeat)
    saved_at = max((v.last_checkpoint for v in runs if v.last_checkpoint is not None), default=None)
    if saved_at is not None:
        series.set_checkpoint(saved_at)
    series.set_bad_steps(0, max(v.steps_since_last_accept for v in runs))
    waiting_reasons = frozenset(v.waiting.value for v in runs if v.waiting is not None)
    for reason in agent.waiting | waiting_reasons:
        series.set_waiting(reason, reason in waiting_reasons)
    agent.waiting = waiting_reasons
    series.set_info(agent.framework or clean_display_name(runs[-1].framework), agent.version)


# -- event handlers ---------------------------------------------------------------------------------


def _on_started(agent: _Agent, event: AgentEvent, data: Mapping[str, Any], vitals: VitalSigns) -> None:
    agent.failures.pop(event.session_id, None)
    framework_and_version = (
        clean_display_name(data.get("framework") or ""),
        clean_display_name(data.get("version") or ""),
    )
    if framework_and_version != (agent.framework, agent.version) and any(framework_and_version):
        agent.framework, agent.version = framework_and_version
        agent.series.remove_gauges()  # set again at the next scrape


def _on_step(agent: _Agent, event: AgentEvent, data: Mapping[str, Any], vitals: VitalSigns) -> None:
    verdict = str(data.get("verdict") or "continue").lower()
    error = data.get("error_type") or data.get("error")
    if error:
        verdict = "error"
        agent.count_failure(event.session_id, clean_display_name(data.get("error_type") or "error"))
    elif event.session_id in agent.failures:
        del agent.failures[event.session_id]
    if verdict not in VERDICTS:
        verdict = "continue"
    agent.series.count_step(
        clean_display_name(event.node_id), verdict, _read_duration(data), _make_exemplar(event)
    )


def _on_tool(agent: _Agent, event: AgentEvent, data: Mapping[str, Any], vitals: VitalSigns) -> None:
    outcome = ToolOutcome.OK.value
    if is_failed_tool_call(data):
        timeout = ToolOutcome.TIMEOUT.value
        outcome = timeout if data.get("outcome") == timeout else ToolOutcome.ERROR.value
        # Each failed call is a separate error.
        agent.failures.pop(event.session_id, None)
        agent.count_failure(event.session_id, clean_display_name(data.get("error_type") or outcome))
    if data.get("amends"):
        return  # counted when the call ended
    agent.series.count_tool_call(
        clean_display_name(data.get("tool") or ""), outcome, _read_duration(data), _make_exemplar(event)
    )


def _on_llm(agent: _Agent, event: AgentEvent, data: Mapping[str, Any], vitals: VitalSigns) -> None:
    if data.get("error_type") or data.get("error"):
        agent.failures.pop(event.session_id, None)
        agent.count_failure(event.session_id, clean_display_name(data.get("error_type") or "error"))
    input_tokens, output_tokens = (
        count_or_zero(data.get("input_tokens")),
        count_or_zero(data.get("output_tokens")),
    )
    if input_tokens or output_tokens:
        agent.series.count_tokens(clean_display_name(data.get("model") or ""), input_tokens, output_tokens)
    if cost := parse_dollars(data.get("cost_usd")):
        agent.series.count_cost(cost)


def _on_failed(agent: _Agent, event: AgentEvent, data: Mapping[str, Any], vitals: VitalSigns) -> None:
    agent.count_failure(event.session_id, clean_display_name(data.get("error_type") or "error"))
    del agent.failures[event.session_id]


def _on_completed(agent: _Agent, event: AgentEvent, data: Mapping[str, Any], vitals: VitalSigns) -> None:
    agent.failures.pop(event.session_id, None)


def _on_finding(agent: _Agent, event: AgentEvent, data: Mapping[str, Any], vitals: VitalSigns) -> None:
    if data.get("kind") in (FindingKind.STALL, FindingKind.TOOL_TIMEOUT):
        agent.series.count_stall(vitals.phase.value)


_Handler = Callable[[_Agent, AgentEvent, Mapping[str, Any], VitalSigns], None]

_HANDLERS: Final[Mapping[EventType, _Handler]] = {
    EventType.EXECUTION_STARTED: _on_started,
    EventType.EXECUTION_COMPLETED: _on_completed,
    EventType.EXECUTION_FAILED: _on_failed,
    EventType.STEP_COMPLETED: _on_step,
    EventType.TOOL_CALL_COMPLETED: _on_tool,
    EventType.LLM_CALL_COMPLETED: _on_llm,
    EventType.FINDING_OPENED: _on_finding,
}


def _read_duration(data: Mapping[str, Any]) -> float | None:
    """Return the duration, or None if it is missing or not valid."""
    value = data.get("duration")
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e9 else None


def _make_exemplar(event: AgentEvent) -> dict[str, str] | None:
    return {"trace_id": event.trace_id} if event.trace_id else None
