"""Find workers in Prometheus by the metrics that instrumented agents expose."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from queenright.health.settings import HealthSettings
from queenright.instrumentation import names
from queenright.instrumentation.names import MetricName, WaitingReason
from queenright.judge.stack.http import InvalidQueryError, InvalidSelectorError, StackUnavailableError
from queenright.judge.stack.prometheus import Prometheus, Series
from queenright.judge.stack.samples import Samples
from queenright.judge.stack.targets import Targets, may_share_target, strip_braces, target_labels, target_name

GONE_FOR: Final = "1h"
"""
How long the last samples of a process count after its target is down. The recording rules use the same time.
"""

_STATE_METRICS: Final = (
    names.WORKER_INFO,
    names.WORKER_STEPS_SINCE_ACCEPT,
    names.WORKER_LAST_HEARTBEAT,
    names.WORKER_LAST_ACTIVITY,
    names.WORKER_LAST_PROGRESS,
    names.WORKER_LAST_CHECKPOINT,
    names.WORKER_WAITING,
)
_TOTAL_METRICS: Final = (
    names.WORKER_STEPS,
    names.WORKER_TOOL_CALLS,
    names.WORKER_TOKENS,
    names.WORKER_ERRORS,
)
_QUERY_POSITION: Final = re.compile(r'^\d+ (?:invalid parameter "query": )?|\b\d+:\d+: ')
"""Matches positions in the generated query, which mean nothing to the author of the selector."""

_PROCESS_START: Final = "process_start_time_seconds"

# The metrics in each answer that contains metric names.
_NAME_LABELS: Final[Mapping[str, Collection[str]]] = {
    "here": {metric.name for metric in _STATE_METRICS},
    "gone": {metric.name for metric in _STATE_METRICS},
    "totals": {metric.name for metric in _TOTAL_METRICS},
}

Target = tuple[str, str]
"""``(agent, target)``: an agent, and the scrape target of its process."""


@dataclass(slots=True)
class Sighting:
    """The metrics of an agent in a process. Times are in seconds since the epoch, or None if unknown."""

    agent: str
    target: str
    """
    ``job/instance``, after the cluster if there is one. It takes the place of a session, which metrics do not
    have.
    """
    labels: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The labels of the target."""
    is_down: bool = False
    """Whether the target is down. The values are then its last samples within the last hour."""
    framework: str = ""
    process_started: float | None = None
    is_in_grace: bool = False
    """Whether the worker did not exist one start grace ago."""
    known_for: float = 0.0
    """The number of seconds for which the worker has existed at least."""
    is_doubtful: bool = False
    """Whether one of the metrics is not a number, so that missing findings mean nothing."""
    bad_steps: int = 0
    last_heartbeat: float | None = None
    last_activity: float | None = None
    last_progress: float | None = None
    last_checkpoint: float | None = None
    waiting: WaitingReason | None = None
    steps: int = 0
    tokens: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """The number of errors by class, since the start of the process."""
    tool_calls: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The number of calls and failed calls by tool, since the start of the process."""
    recent_calls: dict[str, tuple[float, float]] = field(default_factory=dict)
    """
    The number of calls and failed calls by tool in the last ``stall.unknown_seconds``, across counter resets.
    """
    stalled_in: str = ""
    """The phase in which the worker reported a stall within that time."""

    @property
    def key(self) -> Target:
        """The identity of the worker."""
        return (self.agent, self.target)


async def prometheus_time(prometheus: Prometheus) -> float:
    """
    Return the time of Prometheus, from which all ages are computed.

    Raises:
        StackError: Prometheus cannot be queried.
    """
    answer = await prometheus.query("time()")
    if len(answer) != 1 or not math.isfinite(answer[0].value):
        raise StackUnavailableError(prometheus.name, "does not return its time; check the address")
    return answer[0].value


async def find_workers(
    prometheus: Prometheus,
    settings: HealthSettings,
    now: float,
    selector: str = "",
    samples: Samples | None = None,
) -> list[Sighting]:
    """
    Return the workers that have metrics, or had metrics within the last hour if their target is down.

    A worker that ends normally removes its series, so it is not returned.

    Args:
        selector: Label matchers that select the workers, such as ``{cluster="x"}``.

    Raises:
        InvalidSelectorError: Prometheus rejects the selector.
        StackError: Prometheus cannot be queried.
    """
    unknown_seconds, grace = settings.stall.unknown_seconds, max(settings.judge.start_grace_seconds, 1.0)
    within = f"{max(unknown_seconds, 1.0):.0f}s"
    states, activity = _select(_STATE_METRICS, selector), _select([names.WORKER_LAST_ACTIVITY], selector)
    alive = _select([names.WORKER_LAST_ACTIVITY, names.WORKER_LAST_HEARTBEAT], selector)
    queries = {
        "here": states,
        "gone": f"last_over_time({states}[{GONE_FOR}]) and on (job, instance) up == 0",
        "totals": _select(_TOTAL_METRICS, selector),
        "calls": f"increase({_select([names.WORKER_TOOL_CALLS], selector)}[{within}])",
        "stalls": f"increase({_select([names.WORKER_STALLS], selector)}[{within}]) > 0",
        "before": f"{alive} offset {grace:.0f}s",
        "long_before": f"{alive} offset {within}",
        "up": f"up and on (job, instance) last_over_time({alive}[{GONE_FOR}])",
        "started": f"{_PROCESS_START} and on (job, instance) {activity}",
    }
    samples = samples or Samples()
    answers, doubtful = dict[str, list[Series]](), set[Target]()
    for name, promql in queries.items():
        answer = await _query(prometheus, promql, now, selector)
        answers[name], invalid = samples.select_valid(answer, _NAME_LABELS.get(name))
        doubtful |= {key for series in invalid if (key := _get_target(series)) is not None}
    targets = Targets(answers["up"])
    sightings: dict[Target, Sighting] = {}
    for down, name in ((False, "here"), (True, "gone")):
        new_sightings: dict[Target, Sighting] = {}
        for series in answers[name]:
            if (key := _get_target(series)) is None or key in sightings:
                continue
            if down and targets.up(series.labels) is not False:
                continue  # another target of the same name is down
            sighting = Sighting(
                *key, labels=target_labels(series.labels), is_down=down, is_doubtful=key in doubtful
            )
            _apply_state(new_sightings.setdefault(key, sighting), series)
        sightings |= new_sightings
    _add_totals(sightings, answers["totals"])
    _add_recent(sightings, answers["calls"], answers["stalls"])
    _add_ages(
        sightings, {grace: answers["before"], unknown_seconds: answers["long_before"]}, answers["started"]
    )
    for sighting in sightings.values():
        sighting.is_in_grace = sighting.known_for < grace and not sighting.is_down
    return [sighting for sighting in sightings.values() if sighting.last_activity or sighting.last_heartbeat]


async def _query(prometheus: Prometheus, promql: str, now: float, selector: str) -> list[Series]:
    try:
        return await prometheus.query(promql, now)
    except InvalidQueryError as error:
        # The generated part is well-formed, so a parse error is in the selector. Other errors with status 422
        # are limits.
        if not strip_braces(selector) or not (error.reason.startswith("400") or "pars" in error.reason):
            raise
        raise InvalidSelectorError(selector, _QUERY_POSITION.sub("", error.reason)) from None


def _select(metrics: Iterable[MetricName], selector: str) -> str:
    """Return a PromQL selector for several metrics with the matchers in ``selector``."""
    matchers = strip_braces(selector)
    alternatives = "|".join(metric.name for metric in metrics)
    return f'{{__name__=~"{alternatives}"{"," if matchers else ""}{matchers}}}'


def _get_target(series: Series) -> Target | None:
    agent = series.labels.get("agent")
    return (agent, target_name(series.labels)) if agent else None


def _select_known(
    sightings: Mapping[Target, Sighting], answer: Iterable[Series]
) -> Iterator[tuple[Sighting, Series]]:
    """Yield the series of known workers, each with its worker."""
    for series in answer:
        key = _get_target(series)
        if key is not None and key in sightings:
            yield sightings[key], series


def _apply_state(sighting: Sighting, series: Series) -> None:
    # Two Prometheus replicas may return a series twice. The later value counts.
    metric, value = series.labels.get("__name__"), series.value
    if metric == names.WORKER_INFO.name:
        sighting.framework = series.labels.get("framework", "")
    elif metric == names.WORKER_WAITING.name:
        if value >= 1:
            sighting.waiting = _parse_reason(series.labels.get("reason", ""))
    elif metric == names.WORKER_STEPS_SINCE_ACCEPT.name:
        sighting.bad_steps = max(sighting.bad_steps, round(value))
    elif value > 0:  # 0 means that the gauge is not set yet
        name = _TIME_FIELDS[metric or ""]
        setattr(sighting, name, max(getattr(sighting, name) or 0.0, value))


_TIME_FIELDS: Final = {
    names.WORKER_LAST_HEARTBEAT.name: "last_heartbeat",
    names.WORKER_LAST_ACTIVITY.name: "last_activity",
    names.WORKER_LAST_PROGRESS.name: "last_progress",
    names.WORKER_LAST_CHECKPOINT.name: "last_checkpoint",
}


def _parse_reason(word: str) -> WaitingReason:
    try:
        return WaitingReason(word)
    except ValueError:
        return WaitingReason.PAUSED  # a newer version may have other reasons


def _add_totals(sightings: Mapping[Target, Sighting], totals: Iterable[Series]) -> None:
    by_labels: dict[tuple[Target, str, tuple[str, ...]], float] = defaultdict(float)
    for sighting, series in _select_known(sightings, totals):
        metric = names.METRICS[series.labels["__name__"]]
        counter_key = (
            sighting.key,
            metric.name,
            tuple(series.labels.get(name, "") for name in metric.labels[1:]),
        )
        by_labels[counter_key] = max(by_labels[counter_key], series.value)
    for (key, name, labels), value in by_labels.items():
        sighting, number = sightings[key], round(value)
        if name == names.WORKER_STEPS.name:
            sighting.steps += number
        elif name == names.WORKER_TOKENS.name:
            sighting.tokens += number
        elif name == names.WORKER_ERRORS.name:
            sighting.errors[labels[0]] = sighting.errors.get(labels[0], 0) + number
        else:
            calls, failures = sighting.tool_calls.get(labels[0], (0, 0))
            failed = 0 if labels[1] == names.ToolOutcome.OK.value else number
            sighting.tool_calls[labels[0]] = (calls + number, failures + failed)


def _add_recent(
    sightings: Mapping[Target, Sighting], calls: Iterable[Series], stalls: Iterable[Series]
) -> None:
    by_labels: dict[tuple[Target, str, str], float] = defaultdict(float)
    for sighting, series in _select_known(sightings, calls):
        labels = (sighting.key, series.labels.get("tool", ""), series.labels.get("outcome", ""))
        by_labels[labels] = max(by_labels[labels], series.value)
    for (key, tool, outcome), value in by_labels.items():
        calls_so_far, failures = sightings[key].recent_calls.get(tool, (0.0, 0.0))
        failed = 0.0 if outcome == names.ToolOutcome.OK.value else value
        sightings[key].recent_calls[tool] = (calls_so_far + value, failures + failed)
    for sighting, series in _select_known(sightings, stalls):
        sighting.stalled_in = series.labels.get("phase", "")


def _add_ages(
    sightings: Mapping[Target, Sighting],
    before: Mapping[float, Iterable[Series]],
    starts: Iterable[Series],
) -> None:
    """Set the age of the workers. ``before`` has the series from this many seconds ago."""
    for ago, answer in before.items():
        for sighting, _ in _select_known(sightings, answer):
            sighting.known_for = max(sighting.known_for, ago)
    since: dict[str, list[Series]] = defaultdict(list)
    for series in starts:
        since[target_name(series.labels)].append(series)
    for sighting in sightings.values():
        for series in since[sighting.target]:
            if may_share_target(sighting.labels, series.labels):
                sighting.process_started = series.value
