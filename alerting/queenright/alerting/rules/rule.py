"""Rules, rule groups, and their links and selectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from queenright.instrumentation.names import SOURCE_MONITOR

Severity = Literal["critical", "warning", "info", "none"]
"""``critical`` pages, ``warning`` needs attention today, ``info`` is context, ``none`` is the Watchdog."""

DEFAULT_SERVICE: Final = 'job="queenright"'
"""Default matcher for the service's target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selectors:
    """
    Comma-separated PromQL matchers that are added to every selector; empty for none.

    ``service`` applies to the service's own metrics, ``worker`` to those of agent processes.
    """

    service: str = ""
    worker: str = ""

    @property
    def up(self) -> str:
        """The matchers for ``up``, which has no ``queenright_`` name to select by."""
        return self.service or DEFAULT_SERVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Base URLs for the links in alert annotations; an empty URL leaves its links out."""

    runbooks: str = "http://127.0.0.1:8420/runbooks"
    dashboards: str = "http://127.0.0.1:3000/d"


NO_SELECTORS: Final = Selectors()
DEFAULT_LINKS: Final = Links()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingRule:
    """A recording rule, named ``level:metric:operations``. ``why`` is a comment of one paragraph."""

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

    ``threshold`` is the firing condition with its setting; ``reason`` is why that matters, in one sentence.
    ``for_`` and ``keep_firing_for`` are Prometheus durations, empty for none. ``dashboard`` is the uid of a
    dashboard with its variables.
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
    """A comment about the expression, one paragraph."""
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
    A rule group, evaluated sequentially, and its file.

    ``interval`` is a Prometheus duration; empty for the global evaluation interval.
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
    """Join the lines of an expression with spaces, as YAML folding does."""
    return " ".join(line.strip() for line in expr.strip().splitlines())


def _link(annotation: str, base: str, place: str) -> dict[str, str]:
    return {annotation: f"{base.rstrip('/')}/{place}"} if base else {}
