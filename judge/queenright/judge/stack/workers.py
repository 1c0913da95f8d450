"""The workers that a Prometheus knows of: found by the metrics of instrumentation, and by nothing else."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from queenright.health.settings import HealthSettings
from queenright.instrumentation import names
from queenright.instrumentation.names import MetricName, WaitingReason
from queenright.judge.stack.http import InvalidQueryError, InvalidSelectorError, StackUnavailableError
from queenright.judge.stack.prometheus import Prometheus, Series
from queenright.judge.stack.samples import Samples
from queenright.judge.stack.targets import Targets, is_of, matchers_of, target_labels, target_of

GONE_FOR: Final = "1h"
"""So long the last word of a process whose target is down counts, as in the recording rules."""

_STATES: Final = (
    names.WORKER_INFO,
    names.WORKER_STEPS_SINCE_ACCEPT,
    names.WORKER_LAST_HEARTBEAT,
    names.WORKER_LAST_ACTIVITY,
    names.WORKER_LAST_PROGRESS,
    names.WORKER_LAST_CHECKPOINT,
    names.WORKER_WAITING,
)
_TOTALS: Final = (names.WORKER_STEPS, names.WORKER_TOOL_CALLS, names.WORKER_TOKENS, names.WORKER_ERRORS)
_POSITION: Final = re.compile(r'^\d+ (?:invalid parameter "query": )?|\b\d+:\d+: ')
"""Where in our own question something is wrong: of no use to whoever wrote only the selector."""

_PROCESS_START: Final = "process_start_time_seconds"

# Which questions are answered with names, and by which.
_NAMED: Final[Mapping[str, Collection[str]]] = {
    "here": {metric.name for metric in _STATES},
    "gone": {metric.name for metric in _STATES},
    "totals": {metric.name for metric in _TOTALS},
}

Target = tuple[str, str]
"""``(agent, target)``: which agent, and in which process."""


@dataclass(slots=True)
class Sighting:
    """What the metrics say of one agent in one process. Times are seconds since the epoch, None: not told."""

    agent: str
    target: str
    """``job/instance``, and the cluster where there is one: Prometheus knows of no sessions."""
    labels: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What its series say of its target."""
    down: bool = False
    """Its target is down: this is the last word of the last hour."""
    framework: str = ""
    process_started: float | None = None
    in_grace: bool = False
    """It was not there yet one start grace ago."""
    there_for: float = 0.0
    """At least so many seconds ago it was there already, as far as was asked."""
    doubtful: bool = False
    """A metric of it is no number: that nothing wrong is seen says nothing."""
    bad_steps: int = 0
    last_heartbeat: float | None = None
    last_activity: float | None = None
    last_progress: float | None = None
    last_checkpoint: float | None = None
    waiting: WaitingReason | None = None
    steps: int = 0
    tokens: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """By class of error, since the process began."""
    tool_calls: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By tool: (calls, those that failed), since the process began."""
    recent_calls: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The same within the last ``stall.unknown_seconds``; a counter that was reset goes on counting."""
    stalled_in: str = ""
    """The phase in which the worker itself saw a stall within that time."""

    @property
    def key(self) -> Target:
        """What makes two sightings one worker."""
        return (self.agent, self.target)


async def prometheus_time(prometheus: Prometheus) -> float:
    """
    Return what time it is to Prometheus: the clock that all ages are taken by.

    Raises:
        StackError: It cannot be asked.
    """
    answer = await prometheus.query("time()")
    if len(answer) != 1 or not math.isfinite(answer[0].value):
        raise StackUnavailableError(prometheus.name, "does not say what time it is; is the address right?")
    return answer[0].value


async def find_workers(
    prometheus: Prometheus,
    settings: HealthSettings,
    now: float,
    selector: str = "",
    samples: Samples | None = None,
) -> list[Sighting]:
    """
    Return everybody whose metrics are there, and whose process is down but had some within the hour.

    A worker that ended well has removed its series while its target is up: it is not among them.

    Args:
        prometheus: Who is asked.
        settings: The health layer's.
        now: Prometheus' time.
        selector: Label matchers, ``{cluster="x"}``, for those that are to be looked at.
        samples: Counts what was left out.

    Raises:
        InvalidSelectorError: Prometheus does not understand the selector.
        StackError: Prometheus cannot be asked.
    """
    long, grace = settings.stall.unknown_seconds, max(settings.judge.start_grace_seconds, 1.0)
    within = f"{max(long, 1.0):.0f}s"
    states, activity = _select(_STATES, selector), _select([names.WORKER_LAST_ACTIVITY], selector)
    alive = _select([names.WORKER_LAST_ACTIVITY, names.WORKER_LAST_HEARTBEAT], selector)
    asked = {
        "here": states,
        "gone": f"last_over_time({states}[{GONE_FOR}]) and on (job, instance) up == 0",
        "totals": _select(_TOTALS, selector),
        "calls": f"increase({_select([names.WORKER_TOOL_CALLS], selector)}[{within}])",
        "stalls": f"increase({_select([names.WORKER_STALLS], selector)}[{within}]) > 0",
        "before": f"{alive} offset {grace:.0f}s",
        "long_before": f"{alive} offset {within}",
        "up": f"up and on (job, instance) last_over_time({alive}[{GONE_FOR}])",
        "started": f"{_PROCESS_START} and on (job, instance) {activity}",
    }
    samples = samples or Samples()
    told, doubtful = dict[str, list[Series]](), set[Target]()
    for what, promql in asked.items():
        answer = await _ask(prometheus, promql, now, selector)
        told[what], no_numbers = samples.usable(answer, _NAMED.get(what))
        doubtful |= {key for series in no_numbers if (key := _target(series)) is not None}
    targets = Targets(told["up"])
    found: dict[Target, Sighting] = {}
    for down, what in ((False, "here"), (True, "gone")):
        fresh: dict[Target, Sighting] = {}
        for series in told[what]:
            if (key := _target(series)) is None or key in found:
                continue
            if down and targets.up(series.labels) is not False:
                continue  # a namesake of its target is down
            sighting = Sighting(
                *key, labels=target_labels(series.labels), down=down, doubtful=key in doubtful
            )
            _state(fresh.setdefault(key, sighting), series)
        found |= fresh
    _add_totals(found, told["totals"])
    _add_recent(found, told["calls"], told["stalls"])
    _add_ages(found, {grace: told["before"], long: told["long_before"]}, told["started"])
    for sighting in found.values():
        sighting.in_grace = sighting.there_for < grace and not sighting.down
    return [sighting for sighting in found.values() if sighting.last_activity or sighting.last_heartbeat]


async def _ask(prometheus: Prometheus, promql: str, now: float, selector: str) -> list[Series]:
    try:
        return await prometheus.query(promql, now)
    except InvalidQueryError as refusal:
        # Our own part of the question is well-formed. 422, but for a parser's, is of what it would take.
        if not matchers_of(selector) or not (refusal.reason.startswith("400") or "pars" in refusal.reason):
            raise
        raise InvalidSelectorError(selector, _POSITION.sub("", refusal.reason)) from None


def _select(metrics: Iterable[MetricName], selector: str) -> str:
    """Return a selector of several metrics with the matchers in ``selector``, as Prometheus wants it."""
    matchers = matchers_of(selector)
    named = "|".join(metric.name for metric in metrics)
    return f'{{__name__=~"{named}"{"," if matchers else ""}{matchers}}}'


def _target(series: Series) -> Target | None:
    agent = series.labels.get("agent")
    return (agent, target_of(series.labels)) if agent else None


def _state(sighting: Sighting, series: Series) -> None:
    # Two replicas of a Prometheus tell the same twice: the later word counts.
    metric, value = series.labels.get("__name__"), series.value
    if metric == names.WORKER_INFO.name:
        sighting.framework = series.labels.get("framework", "")
    elif metric == names.WORKER_WAITING.name:
        if value >= 1:
            sighting.waiting = _reason(series.labels.get("reason", ""))
    elif metric == names.WORKER_STEPS_SINCE_ACCEPT.name:
        sighting.bad_steps = max(sighting.bad_steps, round(value))
    elif value > 0:  # a gauge is born as 0, before anybody has set it
        name = _TIMES[metric or ""]
        setattr(sighting, name, max(getattr(sighting, name) or 0.0, value))


_TIMES: Final = {
    names.WORKER_LAST_HEARTBEAT.name: "last_heartbeat",
    names.WORKER_LAST_ACTIVITY.name: "last_activity",
    names.WORKER_LAST_PROGRESS.name: "last_progress",
    names.WORKER_LAST_CHECKPOINT.name: "last_checkpoint",
}


def _reason(word: str) -> WaitingReason:
    try:
        return WaitingReason(word)
    except ValueError:
        return WaitingReason.PAUSED  # one that a newer version has: it waits, whatever for


def _add_totals(found: Mapping[Target, Sighting], told: Iterable[Series]) -> None:
    by_labels: dict[tuple[Target, str, tuple[str, ...]], float] = defaultdict(float)
    for series in told:
        key = _target(series)
        if key is None or key not in found:
            continue
        metric = names.METRICS[series.labels["__name__"]]
        labels = tuple(series.labels.get(name, "") for name in metric.labels[1:])
        by_labels[key, metric.name, labels] = max(by_labels[key, metric.name, labels], series.value)
    for (key, name, labels), value in by_labels.items():
        sighting, number = found[key], round(value)
        if name == names.WORKER_STEPS.name:
            sighting.steps += number
        elif name == names.WORKER_TOKENS.name:
            sighting.tokens += number
        elif name == names.WORKER_ERRORS.name:
            sighting.errors[labels[0]] = sighting.errors.get(labels[0], 0) + number
        else:
            calls, failed = sighting.tool_calls.get(labels[0], (0, 0))
            bad = 0 if labels[1] == names.ToolOutcome.OK.value else number
            sighting.tool_calls[labels[0]] = (calls + number, failed + bad)


def _add_recent(found: Mapping[Target, Sighting], calls: Iterable[Series], stalls: Iterable[Series]) -> None:
    by_labels: dict[tuple[Target, str, str], float] = defaultdict(float)
    for series in calls:
        key = _target(series)
        if key is not None and key in found:
            one = (key, series.labels.get("tool", ""), series.labels.get("outcome", ""))
            by_labels[one] = max(by_labels[one], series.value)
    for (key, tool, outcome), value in by_labels.items():
        so_far, failed = found[key].recent_calls.get(tool, (0.0, 0.0))
        bad = 0.0 if outcome == names.ToolOutcome.OK.value else value
        found[key].recent_calls[tool] = (so_far + value, failed + bad)
    for series in stalls:
        key = _target(series)
        if key is not None and key in found:
            found[key].stalled_in = series.labels.get("phase", "")


def _add_ages(
    found: Mapping[Target, Sighting],
    before: Mapping[float, Iterable[Series]],
    started: Iterable[Series],
) -> None:
    """Add since when workers are there: ``before`` has, by seconds ago, who was."""
    for ago, there in before.items():
        for series in there:
            key = _target(series)
            if key is not None and key in found:
                found[key].there_for = max(found[key].there_for, ago)
    since: dict[str, list[Series]] = defaultdict(list)
    for series in started:
        since[target_of(series.labels)].append(series)
    for sighting in found.values():
        for series in since[sighting.target]:
            if is_of(sighting.labels, series.labels):
                sighting.process_started = series.value
