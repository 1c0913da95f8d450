"""Resources that a worker has nearly used up: memory, disk, a quota, or its model's context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.health.severity_bands import rate_count
from queenright.instrumentation.identity import clean_name

MAX_RESOURCES: Final = 8
_NAME_LIMIT: Final = 64
_NEARLY_USED: Final = 0.9
"""Workers that manage their memory or quota well stay below this share. It opens no ticket."""


class Resource(NamedTuple):
    """The usage of one resource, as the worker reports it."""

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
    """Consecutive answers of the model that ended at a length limit while its input grew."""

    answers: int
    first: int
    """Input tokens of the first answer."""
    last: int
    since: float


NOT_CUT: Final = CutAnswers(0, 0, 0, 0.0)


def add_report(resources: Resources, data: Mapping[str, Any], at: float) -> Resources:
    """Return the resources updated by a report about one of them. At most ``MAX_RESOURCES`` are kept."""
    reported, amount = data.get("resource"), _parse_amount(data.get("used"))
    limit = _parse_amount(data.get("limit"))
    if not isinstance(reported, str) or amount is None or not limit:
        return resources
    name = clean_name(reported, _NAME_LIMIT)
    previous = next((resource for resource in resources if resource.name == name), None)
    new = Resource(name, amount, limit, at)
    if previous is not None:
        if _rate_level(previous) is _rate_level(new):
            new = new._replace(since=previous.since)
        return tuple(new if resource is previous else resource for resource in resources)
    return (*resources, new) if name and len(resources) < MAX_RESOURCES else resources


def add_answer(cut: CutAnswers, data: Mapping[str, Any], at: float, long: int) -> CutAnswers:
    """Return the count updated by an answer. An input that did not grow counts from ``long`` tokens."""
    tokens = data.get("input_tokens")
    if not data.get("truncated") or not isinstance(tokens, int):
        return NOT_CUT
    if cut.answers and (tokens > cut.last or (tokens == cut.last and tokens >= long)):
        return CutAnswers(cut.answers + 1, cut.first, tokens, cut.since)
    return CutAnswers(1, tokens, tokens, at)


def detect_resource_limit(resources: Resources) -> Finding | None:
    """Find a worker that has used up, or nearly used up, a resource."""
    full = [resource for resource in resources if _rate_level(resource) is not None]
    if not full:
        return None
    severity = max(
        (level for resource in full if (level := _rate_level(resource))), key=lambda severity: severity.rank
    )
    highest = sorted(full, key=lambda resource: -resource.share)[:3]
    evidence = ", ".join(str(resource) for resource in highest)
    since = min(resource.since for resource in full if _rate_level(resource) is severity)
    return Finding.of(FindingKind.RESOURCE_LIMIT, severity, evidence, since)


def detect_answers_cut(cut: CutAnswers, settings: HealthSettings) -> Finding | None:
    """Find a model without room for output, whose answers are cut off and whose input does not shrink."""
    limit = settings.loops.provider_failures
    if cut.answers < limit:
        return None
    is_long = cut.last >= settings.loops.token_spike_minimum
    grew = f"while the input grew from {cut.first:,} to {cut.last:,} tokens"
    evidence = f"the last {cut.answers} answers were cut off at their length limit " + (
        grew if cut.last > cut.first else f"with an input of {cut.last:,} tokens each"
    )
    # With a short input, the output limit may be low on purpose.
    severity = rate_count(cut.answers, limit, settings) if is_long else Severity.MEDIUM
    return Finding.of(FindingKind.CONTEXT_EXHAUSTED, severity, evidence, cut.since)


def _rate_level(resource: Resource) -> Severity | None:
    if resource.share >= 1:
        return Severity.HIGH
    return Severity.LOW if resource.share >= _NEARLY_USED else None


def _parse_amount(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < 1e300 else None
