"""
The trend of each worker: its numbers at the judge's last check, stored in one file.

Conversations are summarized over time, but these numbers stay exact.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from queenright.health.findings import WorkerKey
from queenright.runtime.storage.files import UnusableFileError, read_json, write_json

MAX_WORKERS: Final = 1_000
"""The maximum number of workers. The worker that was checked longest ago is dropped first."""

COUNTS: Final = (
    "total_steps",
    "steps_since_last_accept",
    "tool_calls_total",
    "error_count",
    "tokens",
)
"""The numbers in a health summary whose changes show work."""


class Reading(BaseModel):
    """The numbers of a worker at a check."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent_id: str
    session_id: str
    incarnation_id: str
    at: float
    """Seconds since the epoch."""
    checks: int
    """The number of checks of the worker in this session."""
    counts: dict[str, int | None]
    """The values of ``COUNTS``; None if unknown."""
    last_progress: float | None
    stall_minutes: float | None
    state: str
    verdict: str
    """The outcome: ``healthy``, ``ticket``, ``unknown``, or ``counted`` if a ticket still applied."""

    @property
    def key(self) -> WorkerKey:
        """The worker and its session."""
        return self.agent_id, self.session_id


_FILE: Final = TypeAdapter(list[Reading])


class Trends:
    """The last reading of each worker that was judged."""

    def __init__(self) -> None:
        self._readings: OrderedDict[WorkerKey, Reading] = OrderedDict()
        self.has_changed = False
        """Whether there are changes to save."""

    def __len__(self) -> int:
        return len(self._readings)

    def note(self, summary: Mapping[str, Any], at: float, verdict: str) -> None:
        """Store the numbers in a worker's health summary at ``at``, with the outcome of the check."""
        key = (str(summary["agent_id"]), str(summary["session_id"]))
        before = self._readings.pop(key, None)
        self._readings[key] = Reading(
            agent_id=key[0],
            session_id=key[1],
            incarnation_id=str(summary.get("incarnation_id") or ""),
            at=at,
            checks=1 if before is None else before.checks + 1,
            counts={name: summary.get(name) for name in COUNTS},
            last_progress=summary.get("last_progress"),
            stall_minutes=summary.get("stall_minutes"),
            state=str(summary.get("state") or ""),
            verdict=verdict,
        )
        while len(self._readings) > MAX_WORKERS:
            self._readings.popitem(last=False)
        self.has_changed = True

    def compare(self, summary: Mapping[str, Any], now: float) -> dict[str, Any] | None:
        """
        Return a worker's last reading and the changes since, as JSON values, or None before the first check.

        If a count has decreased, a restart has reset it, and its change is None.
        """
        key = (str(summary["agent_id"]), str(summary["session_id"]))
        last = self._readings.get(key)
        if last is None:
            return None
        progress = summary.get("last_progress")
        return {
            "minutes_ago": round(max(0.0, now - last.at) / 60, 1),
            "checks_before": last.checks,
            "verdict_then": last.verdict,
            "state_then": last.state,
            "then": {**last.counts, "stall_minutes": last.stall_minutes},
            "change": {name: _compute_change(last.counts.get(name), summary.get(name)) for name in COUNTS},
            "progress_since": progress is not None and progress != last.last_progress,
            "restart_since": last.incarnation_id != str(summary.get("incarnation_id") or ""),
        }

    def dump(self) -> list[dict[str, Any]]:
        """Return all readings as JSON values, oldest first, and mark them as saved."""
        self.has_changed = False
        return [reading.model_dump() for reading in self._readings.values()]

    @classmethod
    def load(cls, path: Path) -> Trends:
        """
        Read the readings from a file. There are none if the file does not exist.

        Raises:
            UnusableFileError: The file is damaged.
        """
        trends = cls()
        try:
            readings = _FILE.validate_python(read_json(path))
        except FileNotFoundError:
            return trends
        except ValidationError as error:
            raise UnusableFileError(
                path, f"it does not contain valid trends: {error.error_count()} errors"
            ) from None
        trends._readings = OrderedDict((reading.key, reading) for reading in readings[-MAX_WORKERS:])
        return trends

    @staticmethod
    def save(path: Path, rows: list[dict[str, Any]]) -> None:
        """
        Write the result of ``dump`` atomically.

        Raises:
            OSError: The file cannot be written.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, rows)


def _compute_change(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None or now < before else now - before
