"""Lost spans: work whose end a log record reported, but whose span was dropped or not sampled."""

from __future__ import annotations

from functools import partial
from typing import Final

from queenright.server.telemetry.batch import Batch
from queenright.server.telemetry.bounded import make_room
from queenright.server.telemetry.duplicates import Duplicates
from queenright.server.telemetry.observation import Observation

MAX_HELD: Final = 10_000

SPAN_GRACE_SECONDS: Final = 60.0
"""Seconds to wait for a span after the record of its end; exporters send every 5 s and retry."""


class LostSpans:
    """Reported ends that wait for their spans, which carry more data. Not thread-safe."""

    def __init__(self) -> None:
        self._pending: dict[bytes, tuple[float, Observation]] = {}

    def hold(self, observation: Observation, now: float) -> None:
        """Keep the end of a span until the span is overdue."""
        make_room(self._pending, MAX_HELD)
        self._pending.setdefault(observation.identity, (now + SPAN_GRACE_SECONDS, observation))

    def pop_due(self, now: float, duplicates: Duplicates, batch: Batch) -> list[Observation]:
        """
        Remove and return the ends whose spans have not arrived in time.

        Raises:
            StillStoringError: One of the spans is being stored.
        """
        due_ids = []
        for identity, (at, _) in self._pending.items():
            if at > now:
                break
            due_ids.append((identity, duplicates.is_stored(identity)))
        overdue: list[Observation] = []
        for identity, has_span in due_ids:
            _, observation = self._pending.pop(identity)
            if not has_span:
                observation.awaits_span = False
                overdue.append(observation)
                batch.on_undo(partial(self.hold, observation, now - SPAN_GRACE_SECONDS))
        return overdue
