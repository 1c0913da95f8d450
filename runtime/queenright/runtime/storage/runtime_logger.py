"""
Logs of a session's graph on three levels: executions, node visits and steps.

``summary.json`` (1) and ``details.jsonl`` (2) are written here. ``tool_logs.jsonl`` (3) is the step log,
which instrumentation writes; it is only read here. ``executions.jsonl``, next to the sessions, has one line
for each execution that ended, in any session.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Field, ValidationError

from queenright.runtime.storage.files import (
    UnusableFileError,
    append_line,
    read_json,
    read_newest_lines,
    write_json,
)
from queenright.runtime.storage.session_state import ExecutionState, describe_invalid_state
from queenright.runtime.storage.session_store import Session

_log = logging.getLogger(__name__)

MAX_SUMMARY_EXECUTIONS: Final = 200
"""Number of executions listed in a summary, newest first; older ones count only in its totals."""

_MAX_CONCURRENT_STEPS: Final = 64
"""Steps are logged when they end; with concurrent nodes, this many may be out of order."""


class _Usage(BaseModel):
    steps: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


_SUMMARY_FIELDS: Final = {
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
    *_Usage.model_fields,
}


class _ExecutionRow(_Usage, extra="allow"):
    """One execution that has ended; it has the ``_SUMMARY_FIELDS``."""

    execution_id: str
    status: str


class _Totals(_Usage):
    """Totals of executions: their number, the number per status, and their usage."""

    executions: int = 0
    statuses: dict[str, int] = Field(default_factory=dict)

    def add(self, rows: Iterable[_ExecutionRow]) -> _Totals:
        """Return the totals with those of ``rows``."""
        totals = self.model_copy(deep=True)
        for row in rows:
            totals.executions += 1
            totals.statuses[row.status] = totals.statuses.get(row.status, 0) + 1
            for key in _Usage.model_fields:
                setattr(totals, key, getattr(totals, key) + getattr(row, key))
        return totals


class _Summary(BaseModel):
    session_id: str
    updated_at: float | None = None
    totals: _Totals = Field(default_factory=_Totals)
    """Totals of all executions."""
    earlier: _Totals = Field(default_factory=_Totals)
    """Totals of the executions that are no longer listed."""
    executions: list[_ExecutionRow] = Field(default_factory=list)
    """Newest last."""


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
        row = state.model_dump(mode="json", include=_SUMMARY_FIELDS)
        summary = self._load_summary()
        rows = {listed_row.execution_id: listed_row for listed_row in summary.executions}
        rows[state.execution_id] = _ExecutionRow.model_validate(row)
        older_rows = list(rows.values())[:-MAX_SUMMARY_EXECUTIONS]
        recent_rows = list(rows.values())[-MAX_SUMMARY_EXECUTIONS:]
        earlier = summary.earlier.add(older_rows)
        summary = _Summary(
            session_id=self._session.id,
            updated_at=state.updated_at,
            totals=earlier.add(recent_rows),
            earlier=earlier,
            executions=recent_rows,
        )
        write_json(self._summary, summary.model_dump(mode="json"))
        append_line(self._executions, {"session_id": self._session.id, **row})

    def read_summary(self) -> dict[str, Any]:
        """
        Return a summary of the executions that have ended.

        ``totals`` covers all of them; ``executions`` lists them, newest last; ``earlier`` has the totals of
        those no longer listed. An unreadable summary is logged and treated as missing.
        """
        return self._load_summary().model_dump(mode="json")

    def _load_summary(self) -> _Summary:
        try:
            return _Summary.model_validate(read_json(self._summary))
        except FileNotFoundError:
            pass
        except UnusableFileError as error:
            _log.warning("ignored a summary: %s", error)
        except (ValidationError, RecursionError) as error:
            _log.warning("ignored a summary: %s: %s", self._summary, describe_invalid_state(error))
        return _Summary(session_id=self._session.id)

    def read_visits(self, node_id: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the node visits, newest last; torn lines are skipped."""
        return _read_newest_rows(self._details, node_id, limit)

    def read_steps(self, node_id: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the steps, newest last; torn lines are skipped."""
        return _read_newest_rows(self._steps, node_id, limit)

    def read_next_step(self) -> int:
        """Return the number of the next step if the run of the newest steps is resumed."""
        numbers = [row.get("step_index") for row in self.read_steps(limit=_MAX_CONCURRENT_STEPS)]
        return max((number for number in numbers if isinstance(number, int)), default=-1) + 1


def _read_newest_rows(path: Path, node_id: str | None, limit: int | None) -> list[dict[str, Any]]:
    rows = (row for row in read_newest_lines(path) if node_id is None or row.get("node_id") == node_id)
    try:
        return list(islice(rows, limit))[::-1]
    except UnusableFileError as error:
        _log.warning("ignored a log: %s", error)
        return []
