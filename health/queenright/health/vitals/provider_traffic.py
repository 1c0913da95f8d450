"""The health of model providers, as measured by the fleet's own calls."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from queenright.health.vitals.rate_limits import parse_rate_limit_seconds
from queenright.health.vitals.vital_facts import clean_display_name, is_cancelled_call, parse_seconds
from queenright.runtime.events import AgentEvent, EventType

WINDOW: Final = 600.0
"""The window of a status, in seconds."""
_SHOWN_SECONDS: Final = 3_600.0
"""The seconds for which a model is shown after its last call."""
_MAX_MODELS: Final = 200
"""The maximum number of models. Beyond it, the least recently called model is dropped."""
_SPAN_SECONDS: Final = 10.0
"""The length, in seconds, of the spans in which calls are counted."""
_MAX_DURATIONS: Final = 500
"""The maximum number of durations that are kept per model."""
_MIN_CALLS: Final = 4
"""The minimum number of calls for a share of failures."""
_NEWEST_CALLS: Final = 20
"""The approximate number of calls that determine a status: the newest in the window, in whole spans."""
_DEGRADED_SHARE: Final = 0.1
_FAILING_SHARE: Final = 0.5


class ProviderStatus(StrEnum):
    """The status of a model at a provider."""

    OK = "ok"
    DEGRADED = "degraded"
    """At least a tenth of the newest calls failed."""
    FAILING = "failing"
    """At least half of the newest calls failed, including the last call of at least one agent."""
    LIMITED = "limited"
    """The provider refuses calls until a time that it has stated."""
    UNKNOWN = "unknown"
    """No recent calls."""


@dataclass(frozen=True, slots=True)
class ProviderHealth:
    """The recent calls of one model at one provider. Times are in seconds since the epoch."""

    provider: str
    model: str
    status: ProviderStatus
    calls: int
    """The number of calls within the window."""
    failed: int
    errors: tuple[tuple[str, int], ...]
    """Error classes with their counts, most frequent first."""
    seconds_p50: float | None
    seconds_p95: float | None
    limited_until: float | None
    agents_failing: int
    """The number of agents whose last call failed."""
    last_success: float | None
    last_failure: float | None


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A completed call of a model."""

    key: tuple[str, str]
    """The provider and the model, either of which may be empty."""
    at: float
    agent: str
    error: str
    """The error class; empty if the call succeeded."""
    duration: float | None


@dataclass(slots=True)
class _SpanCount:
    """The calls that ended in one span of time."""

    calls: int = 0
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Traffic:
    counts: dict[int, _SpanCount] = field(default_factory=dict)
    """Counts by the number of the span."""
    durations: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_MAX_DURATIONS))
    """The end and the duration of calls that succeeded."""
    last_call_by_agent: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """The end of each agent's last call, latest last."""
    failing: set[str] = field(default_factory=set)
    """The agents whose last call failed."""
    last_at: float = 0.0
    last_success: float | None = None
    last_failure: float | None = None
    limited_until: float | None = None

    def add(self, call: ModelCall) -> None:
        span = int(call.at // _SPAN_SECONDS)
        if span not in self.counts:
            self.forget(call.at - WINDOW)
        count = self.counts.setdefault(span, _SpanCount())
        count.calls += 1
        if call.error:
            count.errors[call.error] += 1
        elif call.duration is not None:
            self.durations.append((call.at, call.duration))
        self.last_at = max(self.last_at, call.at)
        if call.at >= self.last_call_by_agent.get(call.agent, 0.0):
            self.last_call_by_agent[call.agent] = call.at
            self.last_call_by_agent.move_to_end(call.agent)
            (self.failing.add if call.error else self.failing.discard)(call.agent)

    def forget(self, since: float) -> None:
        """Drop the spans that began before ``since``, and the agents whose last call ended before it."""
        for span in [span for span in self.counts if span * _SPAN_SECONDS < since]:
            del self.counts[span]
        while self.last_call_by_agent and next(iter(self.last_call_by_agent.values())) <= since:
            self.failing.discard(self.last_call_by_agent.popitem(last=False)[0])


class ProviderTraffic:
    """
    Collects the fleet's model calls.

    Cancelled calls are ignored. Calls of the judge and the queen are not collected, because they have their
    own metrics.
    """

    def __init__(self) -> None:
        self._traffic: OrderedDict[tuple[str, str], _Traffic] = OrderedDict()

    def note(self, event: AgentEvent, now: float) -> ModelCall | None:
        """
        Record an event if it is the end of a model call that shows the provider's health. Return the call, or
        None.
        """
        if event.type is not EventType.LLM_CALL_COMPLETED or event.data.get("amends") or not event.agent_id:
            return None
        data, at = event.data, min(event.time, now)
        provider, model = clean_display_name(data.get("provider")), clean_display_name(data.get("model"))
        if at < now - WINDOW or not (provider or model):
            return None
        kind = clean_display_name(data.get("error_type") or ("error" if data.get("error") else ""))
        if kind and is_cancelled_call(f"{kind} {data.get('error') or ''}"):
            return None
        traffic = self._traffic.setdefault((provider, model), _Traffic())
        self._traffic.move_to_end((provider, model))
        while len(self._traffic) > _MAX_MODELS:
            self._traffic.popitem(last=False)
        call = ModelCall((provider, model), at, event.agent_id, kind, parse_seconds(data.get("duration")))
        traffic.add(call)
        if not kind:
            traffic.last_success = max(traffic.last_success or 0.0, at)
            if at >= traffic.last_at:
                traffic.limited_until = None
            return call
        traffic.last_failure = max(traffic.last_failure or 0.0, at)
        if (wait := parse_rate_limit_seconds(data, at)) is not None:
            traffic.limited_until = max(traffic.limited_until or 0.0, at + wait)
        return call

    def providers(self, now: float) -> list[ProviderHealth]:
        """Return the health of each model that was called within the hour, by provider and model."""
        return sorted(self._list_health(now), key=lambda model: (model.provider, model.model))

    def _list_health(self, now: float) -> Iterator[ProviderHealth]:
        for (provider, model), traffic in self._traffic.items():
            if now - traffic.last_at > _SHOWN_SECONDS:
                continue
            since = now - WINDOW
            traffic.forget(since)
            calls, errors = 0, Counter[str]()
            newest_calls, newest_failed = 0, 0
            for _, count in sorted(traffic.counts.items(), reverse=True):
                if calls < _NEWEST_CALLS:
                    newest_calls += count.calls
                    newest_failed += count.errors.total()
                calls += count.calls
                errors += count.errors
            failures = errors.total()
            is_answered = not traffic.failing
            durations = sorted(duration for at, duration in traffic.durations if at > since)
            limited_until = traffic.limited_until
            limited_until = limited_until if limited_until is not None and limited_until > now else None
            yield ProviderHealth(
                provider=provider,
                model=model,
                status=_rate_status(newest_calls, newest_failed, limited_until, is_answered=is_answered),
                calls=calls,
                failed=failures,
                errors=tuple(errors.most_common(3)),
                seconds_p50=_find_quantile(durations, 0.5),
                seconds_p95=_find_quantile(durations, 0.95),
                limited_until=limited_until,
                agents_failing=len(traffic.failing),
                last_success=traffic.last_success,
                last_failure=traffic.last_failure,
            )


def _rate_status(
    calls: int, failures: int, limited_until: float | None, *, is_answered: bool
) -> ProviderStatus:
    if limited_until is not None:
        return ProviderStatus.LIMITED
    if not calls:
        return ProviderStatus.UNKNOWN
    share = failures / calls
    if calls < _MIN_CALLS or share < _DEGRADED_SHARE:
        return ProviderStatus.OK if failures < calls else ProviderStatus.DEGRADED
    return ProviderStatus.FAILING if share >= _FAILING_SHARE and not is_answered else ProviderStatus.DEGRADED


def _find_quantile(values: list[float], share: float) -> float | None:
    return values[min(len(values) - 1, int(share * len(values)))] if values else None
