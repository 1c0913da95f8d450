"""Rules, rule groups, and their links and selectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from queenright.instrumentation.names import SOURCE_MONITOR

Severity = Literal["critical", "warning", "info", "none"]
"""
``critical`` pages, ``warning`` needs attention the same day, ``info`` is context, ``none`` is the Watchdog's.
"""

DEFAULT_SERVICE: Final = 'job="queenright"'
"""Default matcher for the scrape target of the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selectors:
    """
    Comma-separated PromQL matchers that are added to every selector; "" for none.

    ``service`` is added for the service's own metrics, ``worker`` for those of agent processes.
    """

    service: str = ""
    worker: str = ""

    @property
    def up(self) -> str:
        """
        The matchers for ``up``, which are never empty because Prometheus has this metric for every target.
        """
        return self.service or DEFAULT_SERVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Base URLs for the links in the alerts' annotations. If a URL is empty, its links are left out."""

    runbooks: str = "http://127.0.0.1:8420/runbooks"
    dashboards: str = "http://127.0.0.1:3000/d"


NO_SELECTORS: Final = Selectors()
DEFAULT_LINKS: Final = Links()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRule:
    """A recording rule, named ``level:metric:operations``. ``why`` is a comment in the rule file."""

    name: str
    expr: str
    why: str = ""

    def to_dict(self, links: Links) -> dict[str, Any]:
        """Return the rule as in a rule file."""
        return {"record": self.name, "expr": one_line(self.expr)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """
    An alert.

    ``threshold`` is the firing condition with its setting. ``reason`` says why that matters, in one sentence.
    ``for_`` and ``keep_firing_for`` are Prometheus durations, "" for none. ``dashboard`` is the uid of a
    dashboard, with its variables.
    """

    name: str
    expr: str
    severity: Severity
    summary: str
    description: str
    threshold: str
    reason: str
    dashboard: str
    source: str = SOURCE_MONITOR
    for_: str = ""
    keep_firing_for: str = ""
    why: str = ""
    """A comment about the expression in the rule file, one paragraph."""
    labels: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self, links: Links) -> dict[str, Any]:
        """Return the rule as in a rule file."""
        times = {"for": self.for_, "keep_firing_for": self.keep_firing_for}
        return {
            "alert": self.name,
            "expr": one_line(self.expr),
            **{key: value for key, value in times.items() if value},
            "labels": {"severity": self.severity, "source": self.source, **self.labels},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                **_link("runbook_url", links.runbooks, self.name),
                **_link("dashboard_url", links.dashboards, self.dashboard),
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """
    A group of rules, which Prometheus evaluates sequentially, and its file.

    ``interval`` is a Prometheus duration; "" for the global evaluation interval.
    """

    name: str
    file: str
    rules: tuple[RecordingRule | Alert, ...]
    links: Links
    interval: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the group as in a rule file."""
        interval = {"interval": self.interval} if self.interval else {}
        return {"name": self.name, **interval, "rules": [rule.to_dict(self.links) for rule in self.rules]}


def one_line(expr: str) -> str:
    """Return an expression on one line, as YAML folding joins it."""
    return " ".join(line.strip() for line in expr.strip().splitlines())


def _link(annotation: str, base: str, place: str) -> dict[str, str]:
    return {annotation: f"{base.rstrip('/')}/{place}"} if base else {}
