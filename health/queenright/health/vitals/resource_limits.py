"""Limits of a worker's resources: memory, disk, a quota, or its model's context."""

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
"""The share above which a finding without a ticket opens. Well-managed memory or quotas stay below it."""


class Resource(NamedTuple):
    """The usage of one resource, as the worker reports it."""

    name: str
    used: float
    limit: float
    since: float
    """When it reached its current level (below, near or beyond the limit), in seconds since the epoch."""

    @property
    def share(self) -> float:
        """The used share; 1 at the limit."""
        return self.used / self.limit

    def __str__(self) -> str:
        return f"{self.name} {self.share:.0%} used ({self.used:g} of {self.limit:g})"


Resources = tuple[Resource, ...]


class CutAnswers(NamedTuple):
    """Consecutive model answers that were cut off at a length limit while the input grew."""

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
    resource_now = Resource(name, amount, limit, at)
    if previous is not None:
        if _rate_level(previous) is _rate_level(resource_now):
            resource_now = resource_now._replace(since=previous.since)
        return tuple(resource_now if resource is previous else resource for resource in resources)
    return (*resources, resource_now) if name and len(resources) < MAX_RESOURCES else resources


def add_answer(cut: CutAnswers, data: Mapping[str, Any], at: float, long: int) -> CutAnswers:
    """
    Return the count updated by an answer. An input that did not grow counts if it has at least ``long``
    tokens.
    """
    tokens = data.get("input_tokens")
    if not data.get("truncated") or not isinstance(tokens, int):
        return NOT_CUT
    if cut.answers and (tokens > cut.last or (tokens == cut.last and tokens >= long)):
        return CutAnswers(cut.answers + 1, cut.first, tokens, cut.since)
    return CutAnswers(1, tokens, tokens, at)


def detect_resource_limit(resources: Resources) -> Finding | None:
    """Find a worker that has used up, or nearly used up, a resource."""
    nearly_full = [resource for resource in resources if _rate_level(resource) is not None]
    if not nearly_full:
        return None
    severity = max(
        (level for resource in nearly_full if (level := _rate_level(resource))),
        key=lambda severity: severity.rank,
    )
    highest = sorted(nearly_full, key=lambda resource: -resource.share)[:3]
    evidence = ", ".join(str(resource) for resource in highest)
    since = min(resource.since for resource in nearly_full if _rate_level(resource) is severity)
    return Finding.of(FindingKind.RESOURCE_LIMIT, severity, evidence, since)


def detect_answers_cut(cut: CutAnswers, settings: HealthSettings) -> Finding | None:
    """Find a model without room for output: its answers are cut off, and its input does not shrink."""
    limit = settings.loops.provider_failures
    if cut.answers < limit:
        return None
    is_long = cut.last >= settings.loops.token_spike_minimum
    growth = f"while the input grew from {cut.first:,} to {cut.last:,} tokens"
    evidence = f"the last {cut.answers} answers were cut off at their length limit " + (
        growth if cut.last > cut.first else f"with an input of {cut.last:,} tokens each"
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
