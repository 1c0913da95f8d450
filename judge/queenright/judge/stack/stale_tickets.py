"""
Tickets whose worker has no metrics any more. They stay open until the worker is known to have ended.

Metrics may be missing because of a restarted Prometheus, a broken scrape configuration or a wrong selector.
Only a target that is up but has no metrics of the worker shows that the worker has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queenright.instrumentation import names
from queenright.judge.stack.prometheus import Series
from queenright.judge.stack.targets import UP, Targets, target_name
from queenright.runtime.storage.files import UnusableFileError, read_json, write_json

_log = logging.getLogger(__name__)

REPORT_AFTER_SECONDS: Final = 600.0
"""The seconds without metrics after which a ticket is reported."""

SIGNS_OF_LIFE: Final = (names.WORKER_LAST_ACTIVITY.name, names.WORKER_LAST_HEARTBEAT.name)

DOWN: Final = "its target is down, and its last metrics are older than an hour"
DOWN_RECENTLY: Final = "its target is down: its process ended or died"
UNKNOWN: Final = "Prometheus has no target of this name"
NOT_SELECTED: Final = "it has metrics, but the selector excludes it"
DOUBTFUL: Final = "one of its metrics is not a number"


@dataclass(frozen=True, slots=True)
class MissingWorker:
    """A worker of a ticket that has no usable metrics."""

    since: float
    """The time of the first of the consecutive checks without metrics."""
    why: str

    def is_overdue(self, now: float) -> bool:
        """Return whether the worker has been missing long enough to be reported."""
        return now - self.since >= REPORT_AFTER_SECONDS


def explain_stale(agent: str, target: str, answer: Iterable[Series]) -> str:
    """
    Return why a worker has no metrics, or an empty string if it has ended.

    Args:
        answer: ``up`` and the workers' metrics of all targets with the name ``target``.
    """
    up_series, has_metrics = [], False
    for series in answer:
        if series.labels.get("__name__") == UP:
            if series.value in (0, 1):
                up_series.append(series)
        elif target_name(series.labels) == target and series.labels.get("agent") == agent:
            has_metrics = True
    if has_metrics:
        return NOT_SELECTED
    is_up = Targets(up_series).all_up(target)
    if is_up is None:
        return UNKNOWN
    return "" if is_up else DOWN


class StaleTickets:
    """Records when the workers of tickets stopped having metrics."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._since: dict[str, float] = {}

    def load(self) -> None:
        """Read the file of the last job. A damaged file is ignored."""
        try:
            rows = read_json(self._path)
            self._since = {str(ticket_id): float(at) for ticket_id, at in rows.items()}
        except FileNotFoundError:
            return
        except (UnusableFileError, OSError, ValueError, TypeError, AttributeError) as error:
            _log.warning("cannot read %s (%s); ignoring it", self._path.name, type(error).__name__)

    def note(self, reasons: Mapping[str, str], now: float) -> dict[str, MissingWorker]:
        """
        Store the missing workers of this check, and return them by ticket id. ``reasons`` has the reason by
        ticket id.
        """
        since = {ticket_id: min(self._since.get(ticket_id, now), now) for ticket_id in reasons}
        if since != self._since:
            self._since = since
            self._save()
        return {ticket_id: MissingWorker(since[ticket_id], reason) for ticket_id, reason in reasons.items()}

    def _save(self) -> None:
        try:
            write_json(self._path, self._since)
        except OSError as error:
            _log.warning("cannot write %s: %s", self._path.name, error.strerror)
