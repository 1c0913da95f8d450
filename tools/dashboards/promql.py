"""
PromQL for the dashboards.

Every selector is scoped by the dashboard's variables, and every aggregation lists the labels that it keeps.
"""

from __future__ import annotations

from queenright.instrumentation.names import PARTITION_LABEL, MetricName
from tools.dashboards.recorded import OverAll, Recorded

WINDOW = "$__rate_interval"
"""Filled in by Grafana; at least four scrapes at any zoom level."""
BAR = "$__interval_ms / 1000"
"""Seconds between two points, which is the width of a bar."""
SHOWN = "$__range"
"""The dashboard's time range, for instant queries."""
IN_PARTITIONS = f'{PARTITION_LABEL}!=""'
"""Selects the series of a cluster with several partitions, each of which has its own series of an agent."""


Series = MetricName | Recorded


def select(metric: Series, *matchers: str, suffix: str = "") -> str:
    """
    Return the selector of ``metric`` within the dashboard's variables.

    Args:
        metric: The metric. ``$agent`` applies if it has that label; ``$job`` and ``$instance`` do not
            apply to series recorded over all targets.
        matchers: Further label matchers, such as ``'outcome!="ok"'``.
        suffix: ``_bucket`` or ``_count`` of a histogram.
    """
    scope = [] if isinstance(metric, OverAll) else ['job=~"$job"', 'instance=~"$instance"']
    if "agent" in metric.labels:
        scope.append('agent=~"$agent"')
    selector = ", ".join([*scope, *matchers])
    return f"{metric}{suffix}{{{selector}}}" if selector else f"{metric}{suffix}"


def total_by(labels: str, metric: Series, *matchers: str) -> str:
    """Return the sum of a gauge by ``labels`` (comma-separated; empty for a single number)."""
    return f"sum by ({labels}) ({select(metric, *matchers)})"


def highest_by(labels: str, metric: Series, *matchers: str) -> str:
    """Return the maximum of a gauge by ``labels``, so that the worst instance counts."""
    return f"max by ({labels}) ({select(metric, *matchers)})"


def rate_by(labels: str, metric: Series, *matchers: str, suffix: str = "") -> str:
    """Return a counter's rate per second, by ``labels``."""
    return f"sum by ({labels}) (rate({select(metric, *matchers, suffix=suffix)}[{WINDOW}]))"


def counts_by(labels: str, metric: Series, *matchers: str, suffix: str = "") -> str:
    """
    Return the growth of a counter per bar, by ``labels``; the bars add up to the total.

    ``increase`` over one bar would miss growth between the last scrape of a bar and the first of the next,
    so this uses a rate whose window is one scrape longer than a bar.
    """
    return f"{rate_by(labels, metric, *matchers, suffix=suffix)} * {BAR}"


def per_hour_by(labels: str, metric: Series, *matchers: str) -> str:
    """Return the growth of a counter per hour at the current rate, by ``labels``."""
    return f"3600 * {rate_by(labels, metric, *matchers)}"


def increase_by(labels: str, metric: Series, *matchers: str, window: str = WINDOW) -> str:
    """Return the increase of a counter within ``window``, by ``labels``."""
    return f"sum by ({labels}) (increase({select(metric, *matchers)}[{window}]))"


def share_of(labels: str, metric: Series, part: str, *, window: str = WINDOW) -> str:
    """Return the share (0 to 1) of a counter's growth that matches ``part``; 0 where nothing does."""
    whole = increase_by(labels, metric, window=window)
    return f"({increase_by(labels, metric, part, window=window)} or 0 * {whole}) / ({whole} > 0)"


def quantile_by(labels: str, quantile: float, metric: Series, *, window: str = WINDOW) -> str:
    """Return a quantile of a histogram, by ``labels`` (empty for a single value)."""
    grouping = ", ".join(filter(None, ("le", labels)))
    buckets = select(metric, suffix="_bucket")
    return f"histogram_quantile({quantile:g}, sum by ({grouping}) (rate({buckets}[{window}])))"


def buckets_of(metric: Series) -> str:
    """Return the increase of each bucket of a histogram within the window, for a heat map."""
    return f"sum by (le) (increase({select(metric, suffix='_bucket')}[{WINDOW}]))"


def age_by(labels: str, metric: Series) -> str:
    """Return the seconds since the latest value of a timestamp gauge, by ``labels``."""
    # A gauge that was never set is 0, which would be an age of fifty years.
    return f"time() - max by ({labels}) ({select(metric)} > 0)"


def while_known(value: float, metric: Series, *, label: str = "", word: str = "") -> str:
    """
    Return ``value`` while any series of ``metric`` exists, so that 0 differs from "no data".

    Args:
        metric: A metric that exists while the process is up.
    """
    constant = f"vector({value:g})"
    if label:
        constant = f'label_replace({constant}, "{label}", "{word}", "", "")'
    return f"{constant} and on () max by () ({select(metric)})"
