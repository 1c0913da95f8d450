"""The Prometheus metrics of the judge and the queen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Literal, get_args

from opentelemetry.trace import get_current_span
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

from queenright.health.findings import FindingKind, Severity
from queenright.health.tickets.ticket import TicketStatus
from queenright.instrumentation import names
from queenright.instrumentation.families import LiveGauges, counter, gauge, histogram
from queenright.judge.judging_budget import ModelBudget
from queenright.judge.tracing import get_span_ids
from queenright.runtime.llm.model import ModelReply

CheckOutcome = Literal["healthy", "ticket", "unknown"]
TriageOutcome = Literal["dismiss", "intervene", "bypass"]
ModelRole = Literal["judge", "queen"]
FallbackReason = Literal["budget", "timeout", "error", "invalid"]

OpenCounts = Mapping[tuple[Severity, TicketStatus], int]

_MODEL_BUCKETS: Final = (0.01, 0.1, 0.5, 1, 2, 5, 10, 20, 40, 60, 120)
_TRIAGE_BUCKETS: Final = (0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)


class JudgeMetrics:
    """
    The metrics of the judge, the queen and tickets.

    Args:
        open_counts: Returns the number of tickets that are not closed, by severity and status.
    """

    def __init__(self, registry: CollectorRegistry, open_counts: Callable[[], OpenCounts]) -> None:
        self._checks = counter(names.JUDGE_CHECKS, registry)
        self._last_check = gauge(names.JUDGE_LAST_CHECK, registry)
        self._tokens = counter(names.LLM_TOKENS, registry)
        self._cost = counter(names.LLM_COST, registry)
        self._cache_tokens = counter(names.LLM_CACHED_TOKENS, registry)
        self._fallbacks = counter(names.LLM_FALLBACKS, registry)
        self._duration = histogram(names.LLM_REQUEST_DURATION, registry, _MODEL_BUCKETS)
        self._triage = counter(names.TRIAGE, registry)
        self._triage_duration = histogram(names.TRIAGE_DURATION, registry, _TRIAGE_BUCKETS)
        self._tickets = counter(names.TICKETS, registry)
        # Series start at 0. Otherwise the first ticket would be the first sample, which is not an increase.
        for outcome in ("healthy", "ticket", "unknown"):
            self._checks.labels(outcome)
        for decision in ("dismiss", "intervene", "bypass"):
            self._triage.labels(decision)
            self._triage_duration.labels(decision)
        for severity in Severity:
            for cause in FindingKind:
                self._tickets.labels(severity.value, cause.value)
        for role in get_args(ModelRole):
            for reason in get_args(FallbackReason):
                self._fallbacks.labels(role, reason)
        registry.register(LiveGauges(partial(_read_open_tickets, open_counts), names.TICKETS_OPEN))
        self._registry = registry

    def count_check(self, outcome: CheckOutcome, at: float) -> None:
        """Count a check."""
        self._checks.labels(outcome).inc()
        self._last_check.set(at)

    def initialise(self, role: ModelRole, model: str) -> None:
        """Create a model's series with value 0."""
        for family in (self._tokens, self._cache_tokens, self._cost, self._duration):
            family.labels(role, model)

    def count_call(self, role: ModelRole, model: str, reply: ModelReply | None, seconds: float) -> None:
        """Count a call of a model. Without a reply, only its duration is recorded."""
        self._duration.labels(role, model).observe(seconds, _make_exemplar())
        if reply is not None:
            self._tokens.labels(role, model).inc(reply.input_tokens + reply.output_tokens)
            self._cache_tokens.labels(role, model).inc(reply.cached_tokens)
            self._cost.labels(role, model).inc(reply.cost)

    def count_fallback(self, role: ModelRole, reason: FallbackReason) -> None:
        """Count a reply of the rules in place of a model."""
        self._fallbacks.labels(role, reason).inc()

    def watch(self, budget: ModelBudget) -> None:
        """Expose a budget's limits and spending. Call it once per budget."""
        self._registry.register(
            LiveGauges(partial(_read_budget, budget), names.LLM_BUDGET_LIMIT, names.LLM_BUDGET_SPENT)
        )

    def count_ticket(self, severity: Severity, cause: FindingKind) -> None:
        """Count a ticket."""
        self._tickets.labels(severity.value, cause.value).inc()

    def count_triage(self, decision: TriageOutcome, seconds: float) -> None:
        """Count a triage decision that was made ``seconds`` after its ticket."""
        self._triage.labels(decision).inc()
        self._triage_duration.labels(decision).observe(max(seconds, 0.0), _make_exemplar())


def _make_exemplar() -> dict[str, str] | None:
    """Return the current trace as an exemplar, or None without one."""
    trace_id, _ = get_span_ids(get_current_span())
    return {"trace_id": trace_id} if trace_id else None


def _read_open_tickets(counts: Callable[[], OpenCounts], tickets: GaugeMetricFamily) -> None:
    for (severity, status), count in counts().items():
        tickets.add_metric([severity.value, status.value], count)


def _read_budget(budget: ModelBudget, limits: GaugeMetricFamily, spending: GaugeMetricFamily) -> None:
    # This is read at each scrape, because spending leaves its window without an event.
    for window, unit, limit in budget.limits():
        limits.add_metric([window, unit], limit)
    for window, unit, amount in budget.all_spent():
        spending.add_metric([window, unit], amount)
