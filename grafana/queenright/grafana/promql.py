"""
PromQL for the dashboards.

Every selector is scoped by the dashboard's variables; every aggregation names the labels it keeps.
"""

from __future__ import annotations

from queenright.instrumentation.names import MetricName

WINDOW = "$__rate_interval"
"""At least four scrapes, whatever the zoom: Grafana fills it in."""


def select(metric: MetricName, *matchers: str, suffix: str = "") -> str:
    """
    Return the selector of ``metric`` within the dashboard's variables.

    Args:
        metric: What to read; the ``agent`` variable applies if the metric has that label.
        matchers: More label matchers, such as ``'outcome!="ok"'``.
        suffix: ``_bucket`` for the buckets of a histogram.
    """
    scope = ['job=~"$job"', 'instance=~"$instance"']
    if "agent" in metric.labels:
        scope.append('agent=~"$agent"')
    return f"{metric}{suffix}{{{', '.join([*scope, *matchers])}}}"


def total_by(labels: str, metric: MetricName, *matchers: str) -> str:
    """Return the sum of a gauge over everything but ``labels`` (comma-separated; empty for one number)."""
    return f"sum by ({labels}) ({select(metric, *matchers)})"


def highest_by(labels: str, metric: MetricName, *matchers: str) -> str:
    """Return the largest value of a gauge by ``labels``: the worst instance speaks for the agent."""
    return f"max by ({labels}) ({select(metric, *matchers)})"


def rate_by(labels: str, metric: MetricName, *matchers: str) -> str:
    """Return a counter's rate per second, by ``labels``."""
    return f"sum by ({labels}) (rate({select(metric, *matchers)}[{WINDOW}]))"


def increase_by(labels: str, metric: MetricName, *matchers: str) -> str:
    """Return how much a counter grew within the window, by ``labels``."""
    return f"sum by ({labels}) (increase({select(metric, *matchers)}[{WINDOW}]))"


def share_by(labels: str, metric: MetricName, part: str) -> str:
    """Return the share (0 to 1) of a counter's growth that matches ``part``; 0 where nothing does."""
    whole = rate_by(labels, metric)
    return f"({rate_by(labels, metric, part)} or 0 * {whole}) / ({whole} > 0)"


def quantile_by(labels: str, quantile: float, metric: MetricName) -> str:
    """Return a quantile of a histogram in its own unit, by ``labels`` (empty for one over everything)."""
    grouping = ", ".join(filter(None, ("le", labels)))
    buckets = select(metric, suffix="_bucket")
    return f"histogram_quantile({quantile:g}, sum by ({grouping}) (rate({buckets}[{WINDOW}])))"


def buckets_of(metric: MetricName) -> str:
    """Return the growth of each bucket of a histogram within the window, for a heat map."""
    return f"sum by (le) (increase({select(metric, suffix='_bucket')}[{WINDOW}]))"


def age_by(labels: str, metric: MetricName) -> str:
    """Return the seconds since a timestamp gauge, by ``labels``; the newest instance speaks."""
    # A gauge that was never set is 0, which would be an age of fifty years.
    return f"time() - max by ({labels}) ({select(metric)} > 0)"
