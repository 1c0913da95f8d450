"""What a rule is, and where its links and selectors lead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Severity = Literal["critical", "warning", "info", "none"]
"""``critical`` pages, ``warning`` is looked at today, ``info`` is context, ``none`` is the Watchdog."""

DEFAULT_SERVICE: Final = 'job="queenright"'
"""How Prometheus calls the service where nothing else was said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selectors:
    """
    Matchers of PromQL, comma-separated, that every selector gets; empty: the metric's name is enough.

    ``service`` is about the service's own metrics, ``worker`` about those of agents' processes.
    """

    service: str = ""
    worker: str = ""

    @property
    def up(self) -> str:
        """The matchers by which the service's target is found, which has no name of ours."""
        return self.service or DEFAULT_SERVICE


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Where the annotations of alerts lead; an empty one is left out."""

    runbooks: str = "http://127.0.0.1:8420/runbooks"
    dashboards: str = "http://127.0.0.1:3000/d"


EVERYTHING: Final = Selectors()
HERE: Final = Links()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A recording rule, named ``level:metric:operations``. ``why`` is a comment, one paragraph."""

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

    ``threshold`` says from when on it fires, with the setting behind it; ``reason`` why that is worth an
    alert, in one sentence. ``for_`` and ``keep_firing_for`` are durations of Prometheus, empty for none.
    ``dashboard`` is the uid of a dashboard, with its variables.
    """

    name: str
    expr: str
    severity: Severity
    source: str
    summary: str
    description: str
    threshold: str
    reason: str
    dashboard: str
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
    Rules that are evaluated one after the other, and the file that they are in.

    ``interval`` is a duration of Prometheus; empty: as often as everything.
    """

    name: str
    file: str
    rules: tuple[Record | Alert, ...]
    links: Links
    interval: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the group as in a rule file."""
        interval = {"interval": self.interval} if self.interval else {}
        return {"name": self.name, **interval, "rules": [rule.to_dict(self.links) for rule in self.rules]}


def one_line(expr: str) -> str:
    """Return an expression as Prometheus keeps one that was folded: lines joined by a space."""
    return " ".join(line.strip() for line in expr.strip().splitlines())


def _link(annotation: str, base: str, place: str) -> dict[str, str]:
    return {annotation: f"{base.rstrip('/')}/{place}"} if base else {}
