"""Resources that a worker has nearly used up: memory, disk, a quota, or its model's context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.health.severity_bands import severity_by_count
from queenright.instrumentation.identity import clean_name

MAX_RESOURCES: Final = 8
_NAME_LIMIT: Final = 64
_NEARLY_USED: Final = 0.9
"""Workers that manage their memory or quota well stay below; shown only."""


class Resource(NamedTuple):
    """How much of one resource is used, as the worker reports it."""

    name: str
    used: float
    limit: float
    since: float
    """When it reached its current level (below, near or beyond its limit), in seconds since the epoch."""

    @property
    def share(self) -> float:
        """The used share; 1 at the limit."""
        return self.used / self.limit

    def __str__(self) -> str:
        return f"{self.name} {self.share:.0%} used ({self.used:g} of {self.limit:g})"


Resources = tuple[Resource, ...]


class CutAnswers(NamedTuple):
    """Answers of the model, one after the other, that ended at a length limit while its input grew."""

    answers: int
    first: int
    """Input tokens of the first one."""
    last: int
    since: float


NOT_CUT: Final = CutAnswers(0, 0, 0, 0.0)


def after_report(resources: Resources, data: Mapping[str, Any], at: float) -> Resources:
    """Return the resources after a report about one of them; at most ``MAX_RESOURCES`` are kept."""
    resource, amount, limit = data.get("resource"), _amount(data.get("used")), _amount(data.get("limit"))
    if not isinstance(resource, str) or amount is None or not limit:
        return resources
    name = clean_name(resource, _NAME_LIMIT)
    previous = next((each for each in resources if each.name == name), None)
    new = Resource(name, amount, limit, at)
    if previous is not None:
        if _level(previous) is _level(new):
            new = new._replace(since=previous.since)
        return tuple(new if each is previous else each for each in resources)
    return (*resources, new) if name and len(resources) < MAX_RESOURCES else resources


def after_answer(cut: CutAnswers, data: Mapping[str, Any], at: float, long: int) -> CutAnswers:
    """Return the count after another answer of the model; an equal input counts if it is ``long``."""
    tokens = data.get("input_tokens")
    if not data.get("truncated") or not isinstance(tokens, int):
        return NOT_CUT
    if cut.answers and (tokens > cut.last or (tokens == cut.last and tokens >= long)):
        return CutAnswers(cut.answers + 1, cut.first, tokens, cut.since)
    return CutAnswers(1, tokens, tokens, at)


def detect_resource_limit(resources: Resources) -> Finding | None:
    """Find a worker that has used up a resource, or nearly so."""
    full = [each for each in resources if _level(each) is not None]
    if not full:
        return None
    severity = max((level for each in full if (level := _level(each))), key=lambda severity: severity.rank)
    evidence = ", ".join(str(each) for each in sorted(full, key=lambda each: -each.share)[:3])
    since = min(each.since for each in full if _level(each) is severity)
    return Finding.of(FindingKind.RESOURCE_LIMIT, severity, evidence, since)


def detect_answers_cut(cut: CutAnswers, settings: HealthSettings) -> Finding | None:
    """Find a model without room for output: its answers are cut off, and its input does not shrink."""
    limit = settings.loops.provider_failures
    if cut.answers < limit:
        return None
    is_long = cut.last >= settings.loops.token_spike_minimum
    grew = f"while the input grew from {cut.first:,} to {cut.last:,} tokens"
    evidence = f"the last {cut.answers} answers were cut off at their length limit " + (
        grew if cut.last > cut.first else f"with an input of {cut.last:,} tokens each"
    )
    # With a short input, a deliberately low output limit is as likely.
    severity = severity_by_count(cut.answers, limit, settings) if is_long else Severity.MEDIUM
    return Finding.of(FindingKind.CONTEXT_EXHAUSTED, severity, evidence, cut.since)


def _level(resource: Resource) -> Severity | None:
    if resource.share >= 1:
        return Severity.HIGH
    return Severity.LOW if resource.share >= _NEARLY_USED else None


def _amount(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 1e300 else None
