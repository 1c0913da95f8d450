"""Prometheus metrics of workers, built from the table in ``names``; children are bound once and reused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import Any, Final
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from queenright.instrumentation import names
from queenright.instrumentation.drop_counter import DROPPED
from queenright.instrumentation.families import counter, gauge, histogram
from queenright.instrumentation.forks import after_fork_in_child
from queenright.instrumentation.label_limit import LimitCounter
from queenright.instrumentation.names import OTHER, MetricName
from queenright.instrumentation.verdict import Verdict

DURATION_BUCKETS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 240.0, 600.0)
"""Buckets of duration histograms: from an in-memory lookup to the stall threshold of a tool."""

MAX_LABEL_VALUES: Final = 100
"""Maximum nodes, tools, models or error types per agent; further ones are counted as ``other``."""

MAX_AGENTS: Final = 500
"""Maximum live agents per process; further ones are counted as ``other``."""

_COUNTED_BY: Final = {
    "node": names.WORKER_STEPS,
    "tool": names.WORKER_TOOL_CALLS,
    "model": names.WORKER_TOKENS,
    "error_type": names.WORKER_ERRORS,
}
"""The metric under which folded values of each bounded label are counted."""

VERDICTS: Final = (*(verdict.value.lower() for verdict in Verdict), "error")
"""Values of the label ``verdict``."""

Family = Counter | Gauge | Histogram


class WorkerFamilies:
    """
    The metric families of one registry, and the agents that have series in them.

    Args:
        registry: The registry.
        is_service: Whether the registry belongs to the service. The service exports the agents' cost, which
            it computes from telemetry; an agent's process exports the telemetry dropped there.
    """

    _by_registry: Final[WeakKeyDictionary[CollectorRegistry, WorkerFamilies]] = WeakKeyDictionary()
    _lock: Final = threading.Lock()

    def __init__(self, registry: CollectorRegistry, *, is_service: bool = False) -> None:
        def family(name: MetricName) -> Any:
            if name.kind == "histogram":
                return histogram(name, registry, DURATION_BUCKETS)
            return (counter if name.kind == "counter" else gauge)(name, registry)

        self.info = family(names.WORKER_INFO)
        self.steps = family(names.WORKER_STEPS)
        self.step_duration = family(names.WORKER_STEP_DURATION)
        self.tool_calls = family(names.WORKER_TOOL_CALLS)
        self.tool_duration = family(names.WORKER_TOOL_DURATION)
        self.tokens = family(names.WORKER_TOKENS)
        self.errors = family(names.WORKER_ERRORS)
        self.steps_since_accept = family(names.WORKER_STEPS_SINCE_ACCEPT)
        self.last_heartbeat = family(names.WORKER_LAST_HEARTBEAT)
        self.last_activity = family(names.WORKER_LAST_ACTIVITY)
        self.last_progress = family(names.WORKER_LAST_PROGRESS)
        self.last_checkpoint = family(names.WORKER_LAST_CHECKPOINT)
        self.waiting = family(names.WORKER_WAITING)
        self.stalls = family(names.WORKER_STALLS)
        self.is_served = False
        """Whether this process serves the registry to Prometheus; its runs report that to the service."""
        self.cost: Counter | None = family(names.AGENT_COST) if is_service else None
        if not is_service:
            registry.register(DROPPED)
        self.limit_counter = LimitCounter(registry, (names.WORKER_INFO, *_COUNTED_BY.values()))
        self._agents: dict[str, AgentSeries] = {}
        self._reset_lock()
        after_fork_in_child(self._reset_lock)

    def _reset_lock(self) -> None:
        self._agents_lock = threading.Lock()

    @classmethod
    def of(cls, registry: CollectorRegistry, *, is_service: bool = False) -> WorkerFamilies:
        """Return the families of ``registry``, creating them on the first call."""
        with cls._lock:
            families = cls._by_registry.get(registry)
            if families is None:
                families = cls._by_registry[registry] = cls(registry, is_service=is_service)
            return families

    @property
    def is_full(self) -> bool:
        """Whether another agent would be folded into ``other``."""
        return len(self._agents) - (OTHER in self._agents) >= MAX_AGENTS

    def acquire(self, agent: str) -> AgentSeries:
        """Return the series of ``agent``, shared by its runs in this process. ``release`` them at the end."""
        with self._agents_lock:
            if agent not in self._agents and self.is_full:
                agent = self.limit_counter.fold(names.WORKER_INFO, agent)
            series = self._agents.get(agent)
            if series is None:
                series = self._agents[agent] = AgentSeries(self, agent)
            series.users += 1
            return series

    def release(self, series: AgentSeries) -> None:
        """Release the series; they are removed with the last run of the agent."""
        with self._agents_lock:
            series.users -= 1
            if series.users <= 0 and self._agents.get(series.agent) is series:
                del self._agents[series.agent]
                for family, labels in series.labels():
                    family.remove(*labels)


class _CounterWithDuration:
    """A counter and a histogram that are updated together, with at most one exemplar per second."""

    __slots__ = ("_exemplar_at", "_inc", "_observe")

    def __init__(self, counter: Any, histogram: Any) -> None:
        self._inc = counter.inc
        self._observe = histogram.observe
        self._exemplar_at = 0.0

    def __call__(self, seconds: float | None, exemplar: dict[str, str] | None) -> None:
        self._inc()
        if seconds is None:
            return
        if exemplar is None:
            self._observe(seconds)
            return
        # A scrape sees only the last exemplar, and each costs as much as the rest of the update.
        now = monotonic()
        if now - self._exemplar_at >= 1.0:
            self._exemplar_at = now
            self._observe(seconds, exemplar)
        else:
            self._observe(seconds)


class _Timestamp:
    """
    A timestamp gauge with a resolution of 50 ms, so that fast steps skip most updates.

    The series is created with the first value: without heartbeats there is no series with the value 0.
    """

    __slots__ = ("_bind", "_set", "_value")

    def __init__(self, bind: Callable[[], Any]) -> None:
        self._bind = bind
        self.forget()

    def forget(self) -> None:
        """Reset the gauge after its series was removed."""
        self._set: Callable[[float], None] | None = None
        self._value = -1.0

    def set(self, time: float) -> None:
        if not 0.0 <= time - self._value < 0.05:
            self._value = time
            if self._set is None:
                self._set = self._bind().set
            self._set(time)


class AgentSeries:
    """
    The series of one agent.

    Runs of the same agent in one process share them. Timestamps are those of the most recently active run,
    ``steps_since_accept`` is that of the worst run.
    """

    def __init__(self, families: WorkerFamilies, agent: str) -> None:
        self.agent = agent
        self.users = 0
        self._families = families
        self._bound: dict[tuple[str, ...], Any] = {}
        self._values: dict[str, set[str]] = {}
        self._series: dict[tuple[Family, tuple[str, ...]], Any] = {}
        self._bad_steps: dict[int, int] = {}
        self._timestamps = [
            _Timestamp(partial(self._get_child, family))
            for family in (families.last_heartbeat, families.last_activity, families.last_progress)
        ]
        self.heartbeat, self.activity, self.progress = (timestamp.set for timestamp in self._timestamps)
        for phase in names.Phase:
            # Start at 0, otherwise Prometheus does not see the first stall as an increase.
            self._get_child(families.stalls, phase.value)

    def set_info(self, framework: str, version: str) -> None:
        """Set the info metric."""
        self._get_child(self._families.info, framework, version).set(1)

    def count_step(
        self, node: str, verdict: str, seconds: float | None, exemplar: dict[str, str] | None
    ) -> None:
        """Count a step; ``verdict`` is one of accept, retry, continue, escalate, error."""
        bound = self._bound.get(("node", node, verdict))
        if bound is None:
            families = self._families
            bound = self._bind("node", node, verdict, VERDICTS, families.steps, families.step_duration)
        bound(seconds, exemplar)

    def count_tool_call(
        self, tool: str, outcome: str, seconds: float | None, exemplar: dict[str, str] | None
    ) -> None:
        """Count a tool call; ``outcome`` is one of ok, error, timeout."""
        bound = self._bound.get(("tool", tool, outcome))
        if bound is None:
            families, outcomes = self._families, names.ToolOutcome
            bound = self._bind("tool", tool, outcome, outcomes, families.tool_calls, families.tool_duration)
        bound(seconds, exemplar)

    def count_tokens(self, model: str, input_tokens: int, output_tokens: int) -> None:
        """Count tokens."""
        bound = self._bound.get(("model", model))
        if bound is None:
            name = self._limit_label("model", model)
            bound = tuple(
                self._get_child(self._families.tokens, name, direction).inc
                for direction in ("input", "output")
            )
            self._cache_unless_folded(("model", model), bound, name)
        bound[0](input_tokens)
        bound[1](output_tokens)

    def count_cost(self, dollars: float) -> None:
        """Count the cost of model calls; only in the service's registry."""
        if self._families.cost is not None:
            self._get_child(self._families.cost).inc(dollars)

    def count_error(self, error_type: str) -> None:
        """Count an error."""
        name = self._limit_label("error_type", error_type)
        self._get_child(self._families.errors, name).inc()

    def set_checkpoint(self, time: float) -> None:
        """Set the time of the last checkpoint."""
        self._get_child(self._families.last_checkpoint).set(time)

    def set_waiting(self, reason: str, is_waiting: bool) -> None:
        """Set whether the worker waits for ``reason``."""
        self._get_child(self._families.waiting, reason).set(1 if is_waiting else 0)

    def count_stall(self, phase: str) -> None:
        """Count a stall."""
        self._get_child(self._families.stalls, phase).inc()

    def set_bad_steps(self, run: int, number: int) -> None:
        """Set the number of bad steps of one run since its last ACCEPT."""
        if self._bad_steps.get(run) == number:
            return
        self._bad_steps[run] = number
        worst = number if len(self._bad_steps) == 1 else max(list(self._bad_steps.values()))
        self._get_child(self._families.steps_since_accept).set(worst)

    def forget_run(self, run: int) -> None:
        """Forget a run's bad steps."""
        self._bad_steps.pop(run, None)
        self._get_child(self._families.steps_since_accept).set(max(list(self._bad_steps.values()), default=0))

    def remove_gauges(self) -> None:
        """Remove the gauges because no run is active; the counters stay for later runs."""
        for key in [key for key in self._series if isinstance(key[0], Gauge)]:
            family, labels = key
            del self._series[key]
            family.remove(self.agent, *labels)
        for timestamp in self._timestamps:
            timestamp.forget()
        self._bad_steps.clear()

    def labels(self) -> list[tuple[Family, tuple[str, ...]]]:
        """Return every series of the agent as family and label values."""
        return [(family, (self.agent, *labels)) for family, labels in list(self._series)]

    def _get_child(self, family: Family, *labels: str) -> Any:
        """Return the child of ``family`` for this agent and ``labels``; it is removed with the agent."""
        key = (family, labels)
        child = self._series.get(key)
        if child is None:
            child = self._series[key] = family.labels(self.agent, *labels)
        return child

    def _bind(
        self, label: str, value: str, result: str, results: Iterable[str], counts: Family, durations: Family
    ) -> _CounterWithDuration:
        """Return the series of one result, after creating those of all ``results`` at 0."""
        name = self._limit_label(label, value)
        for other_result in results:
            # Start at 0, so that Prometheus sees the first event as an increase.
            self._get_child(counts, name, other_result)
        count = self._get_child(counts, name, result)
        bound = _CounterWithDuration(count, self._get_child(durations, name))
        self._cache_unless_folded((label, value, result), bound, name)
        return bound

    def _limit_label(self, label: str, value: str) -> str:
        """Return ``value``, or ``other`` if the label has reached its limit."""
        values = self._values.setdefault(label, set())
        if value in values:
            return value
        if len(values) >= MAX_LABEL_VALUES:
            return self._families.limit_counter.fold(_COUNTED_BY[label], self.agent, value)
        values.add(value)
        return value

    def _cache_unless_folded(self, key: tuple[str, ...], bound: Any, name: str) -> None:
        # Folded names are not cached: a stream of new names must not grow this table.
        if name != OTHER:
            self._bound[key] = bound


def serve_metrics(
    port: int = 9464, address: str = "127.0.0.1", registry: CollectorRegistry = REGISTRY
) -> int:
    """
    Serve ``/metrics`` for Prometheus in a background thread and return the port.

    Call this before the workers start: their runs report that Prometheus scrapes them, and the service then
    leaves them out of its own ``/metrics``.

    Args:
        port: The port; 0 selects a free one.
        address: The address to bind; default loopback.
        registry: The registry to serve.

    Raises:
        OSError: The port is in use.
    """
    server, _ = start_http_server(port, address, registry)
    mark_metrics_served(registry)
    return int(server.server_port)


def mark_metrics_served(registry: CollectorRegistry = REGISTRY) -> None:
    """Report to the service that the application itself serves ``registry`` to Prometheus."""
    WorkerFamilies.of(registry).is_served = True
