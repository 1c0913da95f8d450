"""A worker's metrics: prometheus-client families of the names table, children bound once and used again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import Any, Final
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from queenright.instrumentation import names
from queenright.instrumentation.dropped import DROPPED
from queenright.instrumentation.forks import after_fork_in_child
from queenright.instrumentation.limited import Limited
from queenright.instrumentation.names import OTHER, MetricName

SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 240.0, 600.0)
"""Buckets of the durations: from a lookup in memory to the stall threshold of a tool."""

VALUES: Final = 100
"""Past this many nodes, tools, models or error types of one agent, further ones are `other`, counted."""

AGENTS: Final = 500
"""Past this many agents alive in one process, further ones are `other`, counted."""

_COUNTED_BY: Final = {
    "node": names.WORKER_STEPS,
    "tool": names.WORKER_TOOL_CALLS,
    "model": names.WORKER_TOKENS,
    "error_type": names.WORKER_ERRORS,
}
"""Of the metrics that have a bounded label, the one by which its folded values are counted."""

VERDICTS: Final = (*(verdict.value.lower() for verdict in names.Verdict), "error")
"""Values of the label ``verdict``."""

Family = Counter | Gauge | Histogram


def new_family(name: MetricName, registry: CollectorRegistry) -> Any:
    """Return the metric family that ``name`` describes, registered."""
    if name.kind == "counter":
        return Counter(name.name, name.help, name.labels, registry=registry)
    if name.kind == "gauge":
        return Gauge(name.name, name.help, name.labels, registry=registry)
    return Histogram(name.name, name.help, name.labels, registry=registry, buckets=SECONDS)


class WorkerFamilies:
    """
    The families of one registry, and the agents that have series in them.

    Args:
        registry: Where they are registered.
        is_service: Whether the registry is the service's. It has what agents cost, for their telemetry says
            that; the registry of an agent's process has how much telemetry was dropped there.
    """

    _by_registry: Final[WeakKeyDictionary[CollectorRegistry, WorkerFamilies]] = WeakKeyDictionary()
    _lock: Final = threading.Lock()

    def __init__(self, registry: CollectorRegistry, *, is_service: bool = False) -> None:
        def family(name: MetricName) -> Any:
            return new_family(name, registry)

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
        """Whether this process serves the registry to Prometheus, and its runs tell the service so."""
        self.cost: Counter | None = family(names.AGENT_COST) if is_service else None
        if not is_service:
            registry.register(DROPPED)
        self.limited = Limited(registry, (names.WORKER_INFO, *_COUNTED_BY.values()))
        self._agents: dict[str, AgentSeries] = {}
        self._forked()
        after_fork_in_child(self._forked)

    def _forked(self) -> None:
        self._agents_lock = threading.Lock()

    @classmethod
    def of(cls, registry: CollectorRegistry, *, is_service: bool = False) -> WorkerFamilies:
        """Return the families of ``registry``, made at the first call."""
        with cls._lock:
            families = cls._by_registry.get(registry)
            if families is None:
                families = cls._by_registry[registry] = cls(registry, is_service=is_service)
            return families

    @property
    def is_full(self) -> bool:
        """Whether a further agent would be folded into ``other``."""
        return len(self._agents) - (OTHER in self._agents) >= AGENTS

    def acquire(self, agent: str) -> AgentSeries:
        """Return the series of ``agent``, shared by its runs in this process; ``release`` them at the end."""
        with self._agents_lock:
            if agent not in self._agents and self.is_full:
                agent = self.limited.fold(names.WORKER_INFO, agent)
            series = self._agents.get(agent)
            if series is None:
                series = self._agents[agent] = AgentSeries(self, agent)
            series.users += 1
            return series

    def release(self, series: AgentSeries) -> None:
        """Give the series back; with the last run of an agent they go."""
        with self._agents_lock:
            series.users -= 1
            if series.users <= 0 and self._agents.get(series.agent) is series:
                del self._agents[series.agent]
                for family, labels in series.labels():
                    family.remove(*labels)


class _Ended:
    """A counter and a histogram that are updated together, with one exemplar a second at most."""

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
        # A scrape sees the last one only, and each costs as much as all the rest of the update.
        now = monotonic()
        if now - self._exemplar_at >= 1.0:
            self._exemplar_at = now
            self._observe(seconds, exemplar)
        else:
            self._observe(seconds)


class _Timestamp:
    """
    A gauge of a time, exact to 50 ms: steps that are faster than that do not pay for each update.

    There is no series before the first time: an agent that sends no heartbeats is not one that last sent
    one in 1970.
    """

    __slots__ = ("_bind", "_set", "_value")

    def __init__(self, bind: Callable[[], Any]) -> None:
        self._bind = bind
        self.forget()

    def forget(self) -> None:
        """Begin anew, after the series was removed."""
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

    Runs of one agent in one process share them: the timestamps are those of the run that did something
    last, ``steps_since_accept`` that of the worst run.
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
            _Timestamp(partial(self._child, family))
            for family in (families.last_heartbeat, families.last_activity, families.last_progress)
        ]
        self.heartbeat, self.activity, self.progress = (timestamp.set for timestamp in self._timestamps)
        for phase in names.Phase:
            # Born at 0, or the first stall of an agent would be no increase to Prometheus.
            self._child(families.stalls, phase.value)

    def info(self, framework: str, version: str) -> None:
        """Say what the agent is."""
        self._child(self._families.info, framework, version).set(1)

    def step_ended(
        self, node: str, verdict: str, seconds: float | None, exemplar: dict[str, str] | None
    ) -> None:
        """Count a step; ``verdict`` is one of accept, retry, continue, escalate, error."""
        key = ("step", node, verdict)
        bound = self._bound.get(key)
        if bound is None:
            name = self._bounded("node", node)
            self._born(self._families.steps, name, VERDICTS)
            count = self._child(self._families.steps, name, verdict)
            bound = _Ended(count, self._child(self._families.step_duration, name))
            self._keep(key, bound, name)
        bound(seconds, exemplar)

    def tool_ended(
        self, tool: str, outcome: str, seconds: float | None, exemplar: dict[str, str] | None
    ) -> None:
        """Count a tool call; ``outcome`` is one of ok, error, timeout."""
        key = ("tool", tool, outcome)
        bound = self._bound.get(key)
        if bound is None:
            name = self._bounded("tool", tool)
            self._born(self._families.tool_calls, name, names.ToolOutcome)
            count = self._child(self._families.tool_calls, name, outcome)
            bound = _Ended(count, self._child(self._families.tool_duration, name))
            self._keep(key, bound, name)
        bound(seconds, exemplar)

    def used(self, model: str, input_tokens: int, output_tokens: int) -> None:
        """Count tokens."""
        bound = self._bound.get(("model", model))
        if bound is None:
            name = self._bounded("model", model)
            bound = tuple(self._child(self._families.tokens, name, way).inc for way in ("input", "output"))
            self._keep(("model", model), bound, name)
        bound[0](input_tokens)
        bound[1](output_tokens)

    def spent(self, dollars: float) -> None:
        """Count what model calls cost; in the service's registry."""
        if self._families.cost is not None:
            self._child(self._families.cost).inc(dollars)

    def failed(self, error_type: str) -> None:
        """Count an error."""
        name = self._bounded("error_type", error_type)
        self._child(self._families.errors, name).inc()

    def checkpoint(self, time: float) -> None:
        """Say when the worker last saved its state."""
        self._child(self._families.last_checkpoint).set(time)

    def waiting(self, reason: str, waits: bool) -> None:
        """Say that the worker waits for ``reason``, or no longer does."""
        self._child(self._families.waiting, reason).set(1 if waits else 0)

    def stalled(self, phase: str) -> None:
        """Count a stall."""
        self._child(self._families.stalls, phase).inc()

    def bad_steps(self, run: int, number: int) -> None:
        """Say how many bad steps one run has had since its last ACCEPT."""
        if self._bad_steps.get(run) == number:
            return
        self._bad_steps[run] = number
        worst = number if len(self._bad_steps) == 1 else max(list(self._bad_steps.values()))
        self._child(self._families.steps_since_accept).set(worst)

    def run_ended(self, run: int) -> None:
        """Forget a run's bad steps."""
        self._bad_steps.pop(run, None)
        self._child(self._families.steps_since_accept).set(max(list(self._bad_steps.values()), default=0))

    def rest(self) -> None:
        """Remove the gauges, as no run goes on; the counters stay, so that a later run adds to them."""
        for key in [key for key in self._series if isinstance(key[0], Gauge)]:
            family, labels = key
            del self._series[key]
            family.remove(self.agent, *labels)
        for timestamp in self._timestamps:
            timestamp.forget()
        self._bad_steps.clear()

    def labels(self) -> list[tuple[Family, tuple[str, ...]]]:
        """Return every series of the agent: its family and all its label values."""
        return [(family, (self.agent, *labels)) for family, labels in list(self._series)]

    def _child(self, family: Family, *labels: str) -> Any:
        """Return the child of ``family`` for this agent and ``labels``, to be removed with the agent."""
        key = (family, labels)
        child = self._series.get(key)
        if child is None:
            child = self._series[key] = family.labels(self.agent, *labels)
        return child

    def _born(self, family: Family, name: str, values: Iterable[str]) -> None:
        """Let all that can happen in ``name`` begin at 0: the first error of a node is an increase, too."""
        for value in values:
            self._child(family, name, value)

    def _bounded(self, label: str, value: str) -> str:
        """Return ``value``, or ``other`` once the label has as many values as it may have."""
        seen = self._values.setdefault(label, set())
        if value in seen:
            return value
        if len(seen) >= VALUES:
            return self._families.limited.fold(_COUNTED_BY[label], self.agent, value)
        seen.add(value)
        return value

    def _keep(self, key: tuple[str, ...], bound: Any, name: str) -> None:
        # A stream of ever new names must not grow this table, so what was folded is looked up anew.
        if name != OTHER:
            self._bound[key] = bound


def serve_metrics(
    port: int = 9464, address: str = "127.0.0.1", registry: CollectorRegistry = REGISTRY
) -> int:
    """
    Serve ``/metrics`` for Prometheus from a thread of its own and return the port.

    Args:
        port: 0 takes a free one.
        address: Loopback unless said otherwise.
        registry: Whose metrics are served.

    The runs of the registry's agents tell the service that they are scraped, and it leaves them out of its
    own ``/metrics``: start this before the workers.

    Raises:
        OSError: the port is taken.
    """
    server, _ = start_http_server(port, address, registry)
    mark_metrics_served(registry)
    return int(server.server_port)


def mark_metrics_served(registry: CollectorRegistry = REGISTRY) -> None:
    """Tell the service that Prometheus scrapes ``registry``, which the application serves by itself."""
    WorkerFamilies.of(registry).is_served = True
