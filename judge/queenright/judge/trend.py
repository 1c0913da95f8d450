"""
What each worker was like when the judge last looked: the trend, as numbers and not as memory of a talk.

A conversation is shortened and summed up; these numbers are not. They are kept in one small file.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from queenright.health.findings import WorkerKey
from queenright.runtime.storage.files import UnusableFileError, read_json, write_json

REMEMBERED: Final = 1_000
"""Workers; the one that was looked at longest ago goes first."""

COUNTS: Final = (
    "total_steps",
    "steps_since_last_accept",
    "tool_calls_total",
    "error_count",
    "tokens",
)
"""The numbers of a health summary whose change tells of work."""


class Look(BaseModel):
    """One worker as it was at a check."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent_id: str
    session_id: str
    incarnation_id: str
    at: float
    """Seconds since the epoch."""
    checks: int
    """How often it has been looked at in this session."""
    counts: dict[str, int | None]
    """``COUNTS``; None where nobody tells."""
    last_progress: float | None
    stall_minutes: float | None
    state: str
    verdict: str
    """What came of the check: ``healthy``, ``ticket``, ``unknown``; ``counted`` on a ticket that stands."""

    @property
    def key(self) -> WorkerKey:
        """Whom it is about: another session is another worker, with a trend of its own."""
        return self.agent_id, self.session_id


_FILE: Final = TypeAdapter(list[Look])


class Trends:
    """The last look at each of the workers that had something to judge."""

    def __init__(self) -> None:
        self._looks: OrderedDict[WorkerKey, Look] = OrderedDict()
        self.changed = False
        """Whether there is something to write."""

    def __len__(self) -> int:
        return len(self._looks)

    def note(self, summary: Mapping[str, Any], at: float, verdict: str) -> None:
        """Remember a worker as its health summary says it is at ``at``, and what came of looking."""
        key = (str(summary["worker_agent_id"]), str(summary["worker_session_id"]))
        before = self._looks.pop(key, None)
        self._looks[key] = Look(
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
        while len(self._looks) > REMEMBERED:
            self._looks.popitem(last=False)
        self.changed = True

    def of(self, summary: Mapping[str, Any], now: float) -> dict[str, Any] | None:
        """
        Return the last look at a worker and what has changed since, as JSON values; None at the first.

        A count that went down says that the worker began anew; its change is None, and no standstill.
        """
        key = (str(summary["worker_agent_id"]), str(summary["worker_session_id"]))
        look = self._looks.get(key)
        if look is None:
            return None
        progress = summary.get("last_progress")
        return {
            "minutes_ago": round(max(0.0, now - look.at) / 60, 1),
            "checks_before": look.checks,
            "verdict_then": look.verdict,
            "state_then": look.state,
            "then": {**look.counts, "stall_minutes": look.stall_minutes},
            "change": {name: _change(look.counts.get(name), summary.get(name)) for name in COUNTS},
            "progress_since": progress is not None and progress != look.last_progress,
            "new_life_since": look.incarnation_id != str(summary.get("incarnation_id") or ""),
        }

    def dump(self) -> list[dict[str, Any]]:
        """Return all looks as JSON values, oldest first; they count as written."""
        self.changed = False
        return [look.model_dump() for look in self._looks.values()]

    @classmethod
    def load(cls, path: Path) -> Trends:
        """
        Read what was written; nothing if there is no file.

        Raises:
            UnusableFileError: It is no such file. Without it every worker is looked at for the first time.
        """
        trends = cls()
        try:
            looks = _FILE.validate_python(read_json(path))
        except FileNotFoundError:
            return trends
        except ValidationError as error:
            raise UnusableFileError(path, f"it holds no trend: {error.error_count()} faults") from None
        trends._looks = OrderedDict((look.key, look) for look in looks[-REMEMBERED:])
        return trends

    @staticmethod
    def save(path: Path, rows: list[dict[str, Any]]) -> None:
        """
        Write what ``dump`` returned, whole or not at all.

        Raises:
            OSError: The disk refused.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, rows)


def _change(then: int | None, now: int | None) -> int | None:
    return None if then is None or now is None or now < then else now - then
