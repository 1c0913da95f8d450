"""Lost spans: work whose end was reported by a record, and whose span an exporter dropped or sampled."""

from __future__ import annotations

from functools import partial
from typing import Final

from queenright.server.telemetry.batch import Batch
from queenright.server.telemetry.duplicates import Duplicates
from queenright.server.telemetry.observation import Observation

MAX_HELD: Final = 10_000

SPAN_GRACE: Final = 60.0
"""Seconds that a span may arrive after the record of its end; exporters send every 5 s and try again."""


class LostSpans:
    """Ends that wait for their spans, the oldest first; the span says more. For one thread."""

    def __init__(self) -> None:
        self._held: dict[bytes, tuple[float, Observation]] = {}

    def hold(self, observation: Observation, now: float) -> None:
        """Keep the end of a span until the span must have arrived."""
        while len(self._held) >= MAX_HELD:
            del self._held[next(iter(self._held))]
        self._held.setdefault(observation.identity, (now + SPAN_GRACE, observation))

    def pop_due(self, now: float, duplicates: Duplicates, batch: Batch) -> list[Observation]:
        """
        Return the ends whose spans have not arrived in time.

        Raises:
            StillStoringError: one of the spans is being stored right now.
        """
        ended = []
        for identity, (at, _) in self._held.items():
            if at > now:
                break
            ended.append((identity, duplicates.is_stored(identity)))
        found: list[Observation] = []
        for identity, has_span in ended:
            _, observation = self._held.pop(identity)
            if not has_span:
                observation.awaits_span = False
                found.append(observation)
                batch.on_undo(partial(self.hold, observation, now - SPAN_GRACE))
        return found
