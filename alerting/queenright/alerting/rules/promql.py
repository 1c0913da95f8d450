"""Building blocks of PromQL: selectors with their scope, durations, and the workers' recorded series."""

from __future__ import annotations

from typing import Final

from queenright.alerting.rules.rule import Selectors
from queenright.instrumentation import names
from queenright.instrumentation.names import MetricName

_WORKER_LABELS: Final = "agent, job, instance"

HEARTBEAT: Final = f"agent_instance:{names.WORKER_LAST_HEARTBEAT}:last"
ACTIVITY: Final = f"agent_instance:{names.WORKER_LAST_ACTIVITY}:last"
CHECKPOINT: Final = f"agent_instance:{names.WORKER_LAST_CHECKPOINT}:last"
WAITING: Final = f"agent_instance:{names.WORKER_WAITING}:last"

BY_WORKER: Final = f"by ({_WORKER_LABELS})"
ON_WORKER: Final = f"on ({_WORKER_LABELS})"

IN_PARTITIONS: Final = f'{names.PARTITION_LABEL}!=""'
"""
Selects the series of a cluster with several partitions. Each partition may have its own series for an agent.
"""

MIN_WINDOW: Final = 60
"""Minimum range of a rate, in seconds: four scrapes."""

UNLESS_WAITING: Final = f"unless {ON_WORKER} {WAITING} == 1"
"""Excludes waiting workers."""


def select(selectors: Selectors, metric: MetricName, *matchers: str, suffix: str = "") -> str:
    """
    Return the selector of ``metric``.

    Args:
        selectors: Metrics named ``queenright_worker_…`` get the matchers ``worker``, other metrics
            ``service``.
        matchers: Further matchers, such as ``'outcome!="ok"'``.
        suffix: ``_bucket`` or ``_count`` for a histogram.
    """
    scope = selectors.worker if metric.name.startswith("queenright_worker_") else selectors.service
    if metric in (names.TELEMETRY_DROPPED, names.SERIES_LIMITED):
        scope = ""  # reported by both workers and the service
    label_matchers = ", ".join(filter(None, (scope, *matchers)))
    return f"{metric}{suffix}{{{label_matchers}}}" if label_matchers else f"{metric}{suffix}"


def format_promql_duration(seconds: float) -> str:
    """Format seconds as a Prometheus duration: ``90`` is ``1m30s``. The minimum is one second."""
    remaining, text = max(1, round(seconds)), ""
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, remaining = divmod(remaining, size)
        text += f"{count}{unit}" if count else ""
    return text


def format_duration_in_words(seconds: float) -> str:
    """Format seconds in words: ``10 minutes``, ``90 seconds``, ``1 hour``."""
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= size and seconds % size == 0:
            return _format_count(seconds / size, unit)
    return _format_count(seconds, "second")


def _format_count(number: float, unit: str) -> str:
    return f"{number:g} {unit}{'' if number == 1 else 's'}"
