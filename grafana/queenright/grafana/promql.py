"""
PromQL for the dashboards.

Every selector is scoped by the dashboard's variables; every aggregation names the labels it keeps.
"""

from __future__ import annotations

from typing import Protocol

from queenright.grafana.recorded import OverAll

WINDOW = "$__rate_interval"
"""At least four scrapes, whatever the zoom: Grafana fills it in."""
BAR = "$__interval_ms / 1000"
"""The seconds between two points, and so the width of a bar."""
SHOWN = "$__range"
"""The time that the dashboard shows; for numbers that are asked for once."""


class Series(Protocol):
    """A metric or what a recording rule makes."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels it has of its own."""
        ...


def select(metric: Series, *matchers: str, suffix: str = "") -> str:
    """
    Return the selector of ``metric`` within the dashboard's variables.

    Args:
        metric: What to read; the ``agent`` variable applies if it has that label. What was recorded over the
            whole cluster has no target any more, so ``job`` and ``instance`` do not apply.
        matchers: More label matchers, such as ``'outcome!="ok"'``.
        suffix: ``_bucket`` for the buckets of a histogram, ``_count`` for how often it was observed.
    """
    scope = [] if isinstance(metric, OverAll) else ['job=~"$job"', 'instance=~"$instance"']
    if "agent" in metric.labels:
        scope.append('agent=~"$agent"')
    inside = ", ".join([*scope, *matchers])
    return f"{metric}{suffix}{{{inside}}}" if inside else f"{metric}{suffix}"


def total_by(labels: str, metric: Series, *matchers: str) -> str:
    """Return the sum of a gauge over everything but ``labels`` (comma-separated; empty for one number)."""
    return f"sum by ({labels}) ({select(metric, *matchers)})"


def highest_by(labels: str, metric: Series, *matchers: str) -> str:
    """Return the largest value of a gauge by ``labels``: the worst instance speaks for the agent."""
    return f"max by ({labels}) ({select(metric, *matchers)})"


def rate_by(labels: str, metric: Series, *matchers: str, suffix: str = "") -> str:
    """Return a counter's rate per second, by ``labels``."""
    return f"sum by ({labels}) (rate({select(metric, *matchers, suffix=suffix)}[{WINDOW}]))"


def counts_by(labels: str, metric: Series, *matchers: str, suffix: str = "") -> str:
    """
    Return how much a counter grew per bar, by ``labels``: the bars add up to what the whole time had.

    Not the increase within a bar: what comes between its last scrape and the next one's first would be in
    neither. The window of the rate is longer than a bar by a scrape.
    """
    return f"{rate_by(labels, metric, *matchers, suffix=suffix)} * {BAR}"


def per_hour_by(labels: str, metric: Series, *matchers: str) -> str:
    """Return how much of a counter comes together in an hour at the rate of the moment, by ``labels``."""
    return f"3600 * {rate_by(labels, metric, *matchers)}"


def increase_by(labels: str, metric: Series, *matchers: str, window: str = WINDOW) -> str:
    """Return how much a counter grew within ``window``, by ``labels``."""
    return f"sum by ({labels}) (increase({select(metric, *matchers)}[{window}]))"


def share_of(labels: str, metric: Series, part: str, *, window: str = WINDOW) -> str:
    """Return the share (0 to 1) of a counter's growth that matches ``part``; 0 where nothing does."""
    whole = increase_by(labels, metric, window=window)
    return f"({increase_by(labels, metric, part, window=window)} or 0 * {whole}) / ({whole} > 0)"


def quantile_by(labels: str, quantile: float, metric: Series, *, window: str = WINDOW) -> str:
    """Return a quantile of a histogram in its own unit, by ``labels`` (empty for one over everything)."""
    grouping = ", ".join(filter(None, ("le", labels)))
    buckets = select(metric, suffix="_bucket")
    return f"histogram_quantile({quantile:g}, sum by ({grouping}) (rate({buckets}[{window}])))"


def buckets_of(metric: Series) -> str:
    """Return the growth of each bucket of a histogram within the window, for a heat map."""
    return f"sum by (le) (increase({select(metric, suffix='_bucket')}[{WINDOW}]))"


def age_by(labels: str, metric: Series) -> str:
    """Return the seconds since a timestamp gauge, by ``labels``; the newest instance speaks."""
    # A gauge that was never set is 0, which would be an age of fifty years.
    return f"time() - max by ({labels}) ({select(metric)} > 0)"


def while_known(value: float, metric: Series, *, label: str = "", word: str = "") -> str:
    """
    Return ``value`` while anything has ``metric``, and nothing once it is gone: 0 is something to be told.

    Args:
        value: What to say.
        metric: What is there as long as the process answers that would know better.
        label: A label for the value, if it needs one ...
        word: ... and what it says.
    """
    said = f"vector({value:g})"
    if label:
        said = f'label_replace({said}, "{label}", "{word}", "", "")'
    return f"{said} and on () max by () ({select(metric)})"
