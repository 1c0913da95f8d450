"""Metrics of interventions, recoveries and circuit breakers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import GaugeMetricFamily

from queenright.health.action_kind import ActionKind
from queenright.health.interventions.intervention import Intervention, InterventionOutcome
from queenright.instrumentation import names
from queenright.instrumentation.families import LiveGauges, counter, gauge, histogram
from queenright.instrumentation.label_limit import LimitCounter
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.tooling.tool_threads import count_abandoned_threads

MAX_BREAKERS: Final = 200
"""Above this number of breakers, only those that are not closed have their own series."""
BREAKER_STATES: Final = ("closed", "open", "half_open")
RECOVERY_OUTCOMES: Final = {
    EventType.RECOVERY_INITIATED: "initiated",
    EventType.RECOVERY_COMPLETED: "completed",
    EventType.RECOVERY_FAILED: "failed",
}
_EXHAUSTED_OUTCOME: Final = "exhausted"
_FROM_START_OUTCOME: Final = "from_start"
_INTERVENTION_DELAY_BUCKETS: Final = (5, 10, 30, 60, 120, 300, 600, 1200, 1800, 2700, 3600, 7200)
_MAX_PROBLEMS: Final = 10_000
"""Maximum number of problems whose first intervention is tracked; the newest are kept."""
_VISIBLE_OUTCOMES: Final = frozenset(
    {InterventionOutcome.DONE, InterventionOutcome.QUEUED, InterventionOutcome.UNCONFIRMED}
)
"""Outcomes that have, or will have, an effect on the worker."""


class BreakerSeries(Protocol):
    """The state of a circuit breaker, for its series."""

    @property
    def name(self) -> str:
        """The full name of the breaker."""
        ...

    @property
    def state(self) -> str:
        """One of ``BREAKER_STATES``."""
        ...

    @property
    def failures(self) -> int:
        """The number of consecutive failures."""
        ...

    @property
    def half_open_at(self) -> float | None:
        """When the breaker allows a trial call, in seconds since the epoch; None while it is closed."""
        ...


class InterventionMetrics:
    """
    Metrics of interventions, recoveries and circuit breakers.

    Args:
        registry: The registry.
        breakers: Returns the current circuit breakers.
        limit_counter: Counts label values that are replaced by `other`.
        left_out_gauge: The number of breakers without their own series.
        list_recoveries: Returns the open recoveries.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        breakers: Callable[[], Iterable[BreakerSeries]],
        limit_counter: LimitCounter,
        left_out_gauge: Gauge,
        *,
        list_recoveries: Callable[[], Sized] = tuple,
    ) -> None:
        # Initialized at 0: a counter that first appears at 1 shows no increase.
        self._interventions = counter(names.INTERVENTIONS, registry)
        self._delay = histogram(names.TIME_TO_INTERVENTION, registry, buckets=_INTERVENTION_DELAY_BUCKETS)
        for kind in ActionKind:
            self._delay.labels(kind.value)
            for outcome in InterventionOutcome:
                if outcome not in (InterventionOutcome.STARTED, InterventionOutcome.QUEUED):
                    self._interventions.labels(kind.value, outcome.value)
        self._recoveries = counter(names.RECOVERIES, registry)
        for outcome_label in (*RECOVERY_OUTCOMES.values(), _EXHAUSTED_OUTCOME, _FROM_START_OUTCOME):
            self._recoveries.labels(outcome_label)
        gauge(names.RECOVERIES_ACTIVE, registry).set_function(lambda: len(list_recoveries()))
        gauge(names.THREADS_LEFT, registry).set_function(count_abandoned_threads)
        # Registered before the transitions, so that the first scrape of a breaker has them at 0.
        self._breakers = breakers
        self._left_out_gauge = left_out_gauge.labels(names.CIRCUIT_BREAKER_STATE.name)
        registry.register(
            LiveGauges(
                self._read_breakers,
                names.CIRCUIT_BREAKER_STATE,
                names.CIRCUIT_BREAKER_FAILURES,
                names.CIRCUIT_BREAKER_HALF_OPEN,
            )
        )
        self._transitions = counter(names.CIRCUIT_BREAKER_TRANSITIONS, registry)
        self._known_breakers: set[str] = set()
        self._limit_counter = limit_counter
        self._problems: OrderedDict[tuple[str, str, float], None] = OrderedDict()

    def count_events(self, events: Sequence[AgentEvent]) -> None:
        """Count the events of interventions, recoveries and breakers."""
        for event in events:
            if event.type is EventType.INTERVENTION_RECORDED:
                exemplar = {"trace_id": event.trace_id} if event.trace_id else None
                self._count_intervention(Intervention.model_validate(event.data), exemplar)
            elif event.type is EventType.CIRCUIT_BREAKER_STATE_CHANGED:
                self._transitions.labels(
                    self._limit_label(str(event.data["name"])), str(event.data["to"])
                ).inc()
            elif event.type in RECOVERY_OUTCOMES:
                self._recoveries.labels(_get_recovery_outcome(event)).inc()

    def add_breaker(self, breaker: str) -> None:
        """Initialize the transitions of a breaker at 0, up to ``MAX_BREAKERS``."""
        if breaker not in self._known_breakers and len(self._known_breakers) < MAX_BREAKERS:
            self._known_breakers.add(breaker)
            for state in BREAKER_STATES:
                self._transitions.labels(breaker, state)

    def _count_intervention(self, intervention: Intervention, exemplar: dict[str, str] | None) -> None:
        # Observe only the delay of the first intervention, because settings define the later ones.
        if intervention.outcome is InterventionOutcome.STARTED:
            return
        if intervention.outcome is not InterventionOutcome.QUEUED:  # counted when its outcome is known
            self._interventions.labels(intervention.kind.value, intervention.outcome.value).inc()
        if intervention.trouble_since is None or intervention.outcome not in _VISIBLE_OUTCOMES:
            return
        problem = (intervention.agent_id, intervention.session_id, intervention.trouble_since)
        if problem in self._problems:
            return
        self._problems[problem] = None
        if len(self._problems) > _MAX_PROBLEMS:
            self._problems.popitem(last=False)
        self._delay.labels(intervention.kind.value).observe(
            max(intervention.created_at - intervention.trouble_since, 0.0), exemplar
        )

    def _read_breakers(
        self, states: GaugeMetricFamily, failures: GaugeMetricFamily, half_open: GaugeMetricFamily
    ) -> None:
        """Add each breaker's state, failures and, if it is open, the time of its trial call."""
        breakers = sorted(self._breakers(), key=lambda breaker: breaker.name)
        listed_breakers = breakers
        if len(breakers) > MAX_BREAKERS:
            listed_breakers = [breaker for breaker in breakers if breaker.state != "closed"][:MAX_BREAKERS]
        self._left_out_gauge.set(len(breakers) - len(listed_breakers))
        for breaker in listed_breakers:
            self.add_breaker(breaker.name)
            for state in BREAKER_STATES:
                states.add_metric([breaker.name, state], float(state == breaker.state))
            failures.add_metric([breaker.name], breaker.failures)
            if breaker.state == "open" and breaker.half_open_at is not None:
                half_open.add_metric([breaker.name], breaker.half_open_at)

    def _limit_label(self, breaker: str) -> str:
        self.add_breaker(breaker)
        if breaker in self._known_breakers:
            return breaker
        return self._limit_counter.fold(names.CIRCUIT_BREAKER_TRANSITIONS, breaker)


def _get_recovery_outcome(event: AgentEvent) -> str:
    """Return the outcome label of a recovery event."""
    if event.data.get("exhausted"):
        return _EXHAUSTED_OUTCOME
    # If there was no valid checkpoint, the key is present with the value None.
    if event.type is EventType.RECOVERY_INITIATED and event.data.get("from_checkpoint", "") is None:
        return _FROM_START_OUTCOME
    return RECOVERY_OUTCOMES[event.type]
