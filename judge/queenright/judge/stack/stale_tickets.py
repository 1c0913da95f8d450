"""
Tickets whose worker is not seen any more: they stay until they are seen to be over.

An empty answer may be a Prometheus that was begun anew, a scrape configuration that broke, or a selector with
a slip in it. Only a target that is up, and has nothing of the worker any more, says that it has ended.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queenright.instrumentation import names
from queenright.judge.stack.prometheus import Series
from queenright.judge.stack.targets import UP, Targets, target_of

_log = logging.getLogger(__name__)

TOLD_AFTER: Final = 600.0
"""So many seconds after it was last seen, a ticket says so."""

SIGNS_OF_LIFE: Final = (names.WORKER_LAST_ACTIVITY.name, names.WORKER_LAST_HEARTBEAT.name)

DOWN: Final = "its target is down, and its last word is older than an hour"
DOWN_LATELY: Final = "its target is down: its process ended, or died"
UNKNOWN: Final = "Prometheus has no target of this name (any more)"
NOT_CHOSEN: Final = "it is there, but not among those that the selector chooses"
DOUBTFUL: Final = "a metric of it is no number"


@dataclass(frozen=True, slots=True)
class Unseen:
    """Why nobody can say how a ticket's worker is."""

    since: float
    """The first look, in a row, that did not see it."""
    why: str

    def long_at(self, now: float) -> bool:
        """Whether it has been so long that people are told."""
        return now - self.since >= TOLD_AFTER


def explain_stale(agent: str, target: str, told: Iterable[Series]) -> str:
    """
    Return why a worker is not seen, empty if it is seen to have ended.

    Args:
        agent: Its name.
        target: Its process.
        told: ``up``, and the metrics of workers, of targets with its name.
    """
    ups, there = [], False
    for series in told:
        if series.labels.get("__name__") == UP:
            if series.value in (0, 1):
                ups.append(series)
        elif target_of(series.labels) == target and series.labels.get("agent") == agent:
            there = True
    if there:
        return NOT_CHOSEN
    up = Targets(ups).all_up(target)
    if up is None:
        return UNKNOWN
    return "" if up else DOWN


class StaleTickets:
    """
    Remembers since when tickets are not seen, from look to look.

    Args:
        path: Where.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._since: dict[str, float] = {}

    def load(self) -> None:
        """Read what the job before wrote; what cannot be read is begun anew."""
        try:
            told = json.loads(self._path.read_bytes())
            self._since = {str(ticket_id): float(at) for ticket_id, at in told.items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, AttributeError) as error:
            _log.warning("%s cannot be read (%s); it is begun anew", self._path.name, type(error).__name__)

    def note(self, why: Mapping[str, str], now: float) -> dict[str, Unseen]:
        """Take what this look did not see, by ticket id, and return it with since when."""
        since = {ticket_id: min(self._since.get(ticket_id, now), now) for ticket_id in why}
        if since != self._since:
            self._since = since
            self._save()
        return {ticket_id: Unseen(since[ticket_id], reason) for ticket_id, reason in why.items()}

    def _save(self) -> None:
        new = self._path.with_suffix(".new")
        try:
            new.write_text(json.dumps(self._since))
            new.replace(self._path)
        except OSError as error:
            _log.warning("%s cannot be written: %s", self._path.name, error.strerror)
