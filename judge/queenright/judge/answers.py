"""
What was answered of whom, so that nobody is asked the same twice.

A worker that was called healthy is asked about again when it shows something else, or after a time that
grows: where a finding stands and means nothing, which is what a model is for, every tick would cost a call.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from queenright.health.findings import FindingKind, Severity, WorkerKey
from queenright.health.monitor import WorkerHealth
from queenright.judge.metrics import CheckOutcome

LONGEST: Final = 3_600.0
"""Seconds after which a worker that stands as it stood is asked about again in any case."""

Shown = frozenset[tuple[FindingKind, Severity]]


class _Answer(NamedTuple):
    shown: Shown
    healthy: int
    """How often it was called healthy, showing this."""
    again_at: float


class Answers:
    """
    The newest answer about each worker that shows something.

    Args:
        interval: Seconds between two checks.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._by_worker: dict[WorkerKey, _Answer] = {}

    def is_news(self, health: WorkerHealth) -> bool:
        """Return whether a worker shows what it did not show when it was last asked about."""
        answer = self._by_worker.get(health.key)
        return answer is None or answer.shown != _shown(health)

    def is_due(self, health: WorkerHealth, now: float) -> bool:
        """Return whether to ask about a worker now: it is news, or the answer is old."""
        return self.is_news(health) or now >= self._by_worker[health.key].again_at

    def asked(self, health: WorkerHealth, now: float) -> None:
        """Note that a worker is asked about, as it is now; without an answer the next check asks again."""
        healthy = 0 if self.is_news(health) else self._by_worker[health.key].healthy
        # A check may come a little before its time.
        self._by_worker[health.key] = _Answer(_shown(health), healthy, now + self._interval / 2)

    def answered(self, key: WorkerKey, outcome: CheckOutcome, now: float) -> None:
        """Note what came of it."""
        answer = self._by_worker.get(key)
        if answer is not None and outcome == "healthy":
            healthy = answer.healthy + 1
            pause = min(self._interval * 2.0 ** min(healthy, 30), LONGEST)
            self._by_worker[key] = answer._replace(healthy=healthy, again_at=now + pause)

    def keep(self, keys: Collection[WorkerKey]) -> None:
        """Forget all but these: what comes back later is news."""
        self._by_worker = {key: answer for key, answer in self._by_worker.items() if key in keys}


def _shown(health: WorkerHealth) -> Shown:
    return frozenset((finding.kind, finding.severity) for finding in health.findings if finding.ticket)
