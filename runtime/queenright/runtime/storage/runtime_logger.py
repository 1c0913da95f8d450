"""
Logs of a session's graph on three levels: executions, node visits and steps.

``summary.json`` (1) and ``details.jsonl`` (2) are written here. ``tool_logs.jsonl`` (3) is the step log,
which instrumentation writes; it is only read here. ``executions.jsonl``, next to the sessions, has one line
for each execution that ended, in any session.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Field

from queenright.runtime.storage.files import (
    UnusableFileError,
    append_line,
    newest_lines,
    read_json,
    write_json,
)
from queenright.runtime.storage.session_state import ExecutionState
from queenright.runtime.storage.session_store import Session

_log = logging.getLogger(__name__)

MAX_SUMMARY_EXECUTIONS: Final = 200
"""Number of executions listed in a summary, newest first; older ones count only in its totals."""

_MAX_CONCURRENT_STEPS: Final = 64
"""Steps are logged when they end; with concurrent nodes, this many may be out of order."""

_COUNTERS: Final = ("steps", "input_tokens", "output_tokens", "cost")
_SUMMARY_FIELDS: Final = (
    "execution_id",
    "graph_id",
    "entry_point",
    "status",
    "started_at",
    "updated_at",
    "ended_at",
    "path",
    "results",
    "error",
    "error_type",
    "goal_progress",
    *_COUNTERS,
)


class VisitRow(BaseModel):
    """One visit of a node; times are in seconds since the epoch, cost in dollars."""

    execution_id: str
    node_id: str
    visit: int
    outcome: str
    verdicts: dict[str, int] = Field(default_factory=dict)
    """Number of times each verdict was given."""
    turns: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    started_at: float
    ended_at: float
    error: str = ""


class RuntimeLogger:
    """
    The logs of a session's graph. Every method blocks: call it through ``Disk.run``.

    Args:
        runtime_logs: Folder of ``executions.jsonl``.
    """

    def __init__(self, session: Session, runtime_logs: Path) -> None:
        self._session = session
        self._summary = session.logs / "summary.json"
        self._details = session.logs / "details.jsonl"
        self._steps = session.logs / "tool_logs.jsonl"
        self._executions = runtime_logs / "executions.jsonl"

    def log_visit(self, row: VisitRow) -> None:
        """
        Append a visit to the details.

        Raises:
            OSError: The disk write failed.
        """
        append_line(self._details, row.model_dump(mode="json"))

    def log_execution(self, state: ExecutionState) -> None:
        """
        Update the summary, and append the execution to ``executions.jsonl``.

        An execution that is resumed and ends again keeps its place in the summary and is counted once. It
        has two lines in ``executions.jsonl``; the later one counts.

        Raises:
            OSError: The disk write failed.
        """
        row = {key: value for key, value in state.model_dump(mode="json").items() if key in _SUMMARY_FIELDS}
        summary = self.summary()
        rows = {each["execution_id"]: each for each in summary["executions"]} | {state.execution_id: row}
        older = list(rows.values())[:-MAX_SUMMARY_EXECUTIONS]
        recent_rows = list(rows.values())[-MAX_SUMMARY_EXECUTIONS:]
        earlier = _totals(older, summary["earlier"])
        summary = {
            "session_id": self._session.id,
            "updated_at": state.updated_at,
            "totals": _totals(recent_rows, earlier),
            "earlier": earlier,
            "executions": recent_rows,
        }
        write_json(self._summary, summary)
        append_line(self._executions, {"session_id": self._session.id, **row})

    def summary(self) -> dict[str, Any]:
        """
        Return a summary of the executions that have ended.

        ``totals`` covers all of them; ``executions`` lists them, newest last; ``earlier`` has the totals of
        those no longer listed. An unreadable summary is logged and treated as missing.
        """
        empty: dict[str, Any] = {
            "session_id": self._session.id,
            "updated_at": None,
            "totals": _totals(()),
            "earlier": _totals(()),
            "executions": [],
        }
        try:
            row = read_json(self._summary)
        except FileNotFoundError:
            return empty
        except UnusableFileError as error:
            _log.warning("ignored a summary: %s", error)
            return empty
        if not _is_summary(row):
            _log.warning("ignored a summary: %s has another format", self._summary)
            return empty
        return {**empty, **row}

    def details(self, node_id: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the node visits, newest last; torn lines are skipped."""
        return _newest(self._details, node_id, limit)

    def steps(self, node_id: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the steps, newest last; torn lines are skipped."""
        return _newest(self._steps, node_id, limit)

    def next_step(self) -> int:
        """Return the number of the next step if the run of the newest steps is resumed."""
        numbers = [row.get("step_index") for row in self.steps(limit=_MAX_CONCURRENT_STEPS)]
        return max((number for number in numbers if isinstance(number, int)), default=-1) + 1


def _newest(path: Path, node_id: str | None, limit: int | None) -> list[dict[str, Any]]:
    rows = (row for row in newest_lines(path) if node_id is None or row.get("node_id") == node_id)
    try:
        return list(islice(rows, limit))[::-1]
    except UnusableFileError as error:
        _log.warning("ignored a log: %s", error)
        return []


def _totals(rows: Iterable[Mapping[str, Any]], before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Sum up executions: their number, the number per status, and their usage."""
    totals: dict[str, Any] = {"executions": 0, "statuses": {}, **dict.fromkeys(_COUNTERS, 0)}
    if before is not None:
        totals |= {**before, "statuses": dict(before["statuses"])}
    for row in rows:
        totals["executions"] += 1
        status = row["status"]
        totals["statuses"][status] = totals["statuses"].get(status, 0) + 1
        for key in _COUNTERS:
            totals[key] += row[key]
    return totals


def _is_summary(row: object) -> bool:
    if not isinstance(row, Mapping) or not isinstance(row.get("executions"), list):
        return False
    rows = row["executions"]
    return _is_totals(row.get("earlier")) and all(
        isinstance(each, Mapping)
        and isinstance(each.get("execution_id"), str)
        and isinstance(each.get("status"), str)
        and all(_is_count(each.get(key)) for key in _COUNTERS)
        for each in rows
    )


def _is_totals(row: object) -> bool:
    return (
        isinstance(row, Mapping)
        and isinstance(row.get("statuses"), Mapping)
        and all(_is_count(count) for count in row["statuses"].values())
        and all(_is_count(row.get(key)) for key in ("executions", *_COUNTERS))
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
