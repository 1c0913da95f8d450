"""Building blocks of PromQL: scoped selectors, durations and recorded series of workers."""

from __future__ import annotations

from typing import Final

from queenright.alerting.rules.rule import Selectors
from queenright.instrumentation import names
from queenright.instrumentation.names import MetricName

_WORKER: Final = "agent, job, instance"

HEARTBEAT: Final = f"agent_instance:{names.WORKER_LAST_HEARTBEAT}:last"
ACTIVITY: Final = f"agent_instance:{names.WORKER_LAST_ACTIVITY}:last"
CHECKPOINT: Final = f"agent_instance:{names.WORKER_LAST_CHECKPOINT}:last"
WAITING: Final = f"agent_instance:{names.WORKER_WAITING}:last"

BY_WORKER: Final = f"by ({_WORKER})"
ON_WORKER: Final = f"on ({_WORKER})"

IN_PARTITIONS: Final = f'{names.PARTITION_LABEL}!=""'
"""Selects the series of a cluster with several partitions, each of which has its own series of an agent."""

MIN_WINDOW: Final = 60
"""Seconds; four scrapes, because a rate needs several."""

UNLESS_WAITING: Final = f"unless {ON_WORKER} {WAITING} == 1"
"""Excludes waiting workers."""


def select(selectors: Selectors, metric: MetricName, *matchers: str, suffix: str = "") -> str:
    """
    Return the selector of ``metric``.

    Args:
        selectors: The scopes; metrics named ``queenright_worker_…`` get the worker's, others the service's.
        matchers: Further matchers, such as ``'outcome!="ok"'``.
        suffix: ``_bucket`` or ``_count`` of a histogram.
    """
    scope = selectors.worker if metric.name.startswith("queenright_worker_") else selectors.service
    if metric in (names.TELEMETRY_DROPPED, names.SERIES_LIMITED):
        scope = ""  # reported by both workers and the service
    label_matchers = ", ".join(filter(None, (scope, *matchers)))
    return f"{metric}{suffix}{{{label_matchers}}}" if label_matchers else f"{metric}{suffix}"


def format_promql_duration(seconds: float) -> str:
    """Format a Prometheus duration: ``90`` is ``1m30s``; the minimum is one second."""
    remaining, text = max(1, round(seconds)), ""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, remaining = divmod(remaining, size)
        text += f"{count}{unit}" if count else ""
    return text


def format_duration_in_words(seconds: float) -> str:
    """Format a duration as text: ``10 minutes``, ``90 seconds``, ``1 hour``."""
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= size and seconds % size == 0:
            return _count(seconds / size, unit)
    return _count(seconds, "second")


def _count(number: float, unit: str) -> str:
    return f"{number:g} {unit}{'' if number == 1 else 's'}"
