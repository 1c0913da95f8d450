"""The judge's last answer about each worker, so that unchanged workers are not judged in every check."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from queenright.health.findings import FindingKind, Severity, WorkerKey
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.judge.metrics import CheckOutcome

MAX_PAUSE: Final = 3_600.0
"""The maximum seconds until an unchanged worker is judged again."""

Symptoms = frozenset[tuple[FindingKind, Severity]]


class _Answer(NamedTuple):
    symptoms: Symptoms
    healthy: int
    """How often the judge called the worker healthy with these symptoms."""
    next_at: float


class Answers:
    """
    The judge's last answer about each worker with findings.

    A worker that was called healthy is judged again when its findings change, or after a growing pause.
    Otherwise a lasting but harmless finding would cost a model call at every check.

    Args:
        interval: The seconds between two checks.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._by_worker: dict[WorkerKey, _Answer] = {}

    def is_news(self, health: WorkerHealth) -> bool:
        """Return whether a worker's findings have changed since it was last judged."""
        answer = self._by_worker.get(health.key)
        return answer is None or answer.symptoms != _find_symptoms(health)

    def is_due(self, health: WorkerHealth, now: float) -> bool:
        """Return whether to judge a worker now."""
        return self.is_news(health) or now >= self._by_worker[health.key].next_at

    def note_request(self, health: WorkerHealth, now: float) -> None:
        """Record that a worker is being judged. Without an answer, the next check judges it again."""
        healthy = 0 if self.is_news(health) else self._by_worker[health.key].healthy
        # The pause is only half an interval, because the next check may run slightly early.
        self._by_worker[health.key] = _Answer(_find_symptoms(health), healthy, now + self._interval / 2)

    def note_outcome(self, key: WorkerKey, outcome: CheckOutcome, now: float) -> None:
        """Record the outcome of judging a worker."""
        answer = self._by_worker.get(key)
        if answer is not None and outcome == "healthy":
            healthy = answer.healthy + 1
            pause = min(self._interval * 2.0 ** min(healthy, 30), MAX_PAUSE)
            self._by_worker[key] = answer._replace(healthy=healthy, next_at=now + pause)

    def keep(self, keys: Collection[WorkerKey]) -> None:
        """Drop the answers about all other workers."""
        self._by_worker = {key: answer for key, answer in self._by_worker.items() if key in keys}


def _find_symptoms(health: WorkerHealth) -> Symptoms:
    return frozenset((finding.kind, finding.severity) for finding in health.findings if finding.ticket)
