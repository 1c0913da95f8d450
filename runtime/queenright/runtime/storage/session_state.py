"""The state of a session, as stored in ``state.json``. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, Field, FiniteFloat

SCHEMA_VERSION: Final = 1
"""Version written here; a file with a higher one is rejected, since an update would lose new fields."""

PATH_LENGTH: Final = 200
"""Number of completed nodes kept per execution, newest first."""


class SessionStatus(StrEnum):
    """Status of an execution, or of all executions of a session together."""

    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"
    """Terminated by an intervention; it can be respawned."""
    UNKNOWN = "unknown"
    """A status written by another version."""


_WORST_FIRST: Final = (
    SessionStatus.ACTIVE,
    SessionStatus.PAUSED,
    SessionStatus.UNKNOWN,
    SessionStatus.FAILED,
    SessionStatus.TERMINATED,
    SessionStatus.CANCELLED,
    SessionStatus.COMPLETED,
)


def _parse_status(value: object) -> object:
    is_known = isinstance(value, str) and value in set(SessionStatus)
    return value if is_known else SessionStatus.UNKNOWN


def _keep_newest(value: object) -> object:
    return value[-PATH_LENGTH:] if isinstance(value, list) else value


class PendingNode(BaseModel):
    """A node that is running, or next to run."""

    node_id: str
    visit: int
    thread: str = ""
    """Folder name of its conversation; "" is the node's own."""
    input: dict[str, Any] = Field(default_factory=dict)


class ExecutionState(BaseModel):
    """One run of a graph; times are in seconds since the epoch, cost in dollars."""

    execution_id: str
    graph_id: str
    entry_point: str
    status: Annotated[SessionStatus, BeforeValidator(_parse_status)]
    incarnation_id: str = ""
    started_at: float
    updated_at: float
    ended_at: float | None = None
    input: dict[str, Any] = Field(default_factory=dict)
    pending: list[PendingNode] = Field(default_factory=list)
    visits: dict[str, int] = Field(default_factory=dict)
    """Number of visits of each node."""
    path: Annotated[list[str], BeforeValidator(_keep_newest)] = Field(default_factory=list)
    """Ids of the completed nodes in order, the newest ``PATH_LENGTH``."""
    results: dict[str, str] = Field(default_factory=dict)
    """Outcome of each node's last visit."""
    outputs: dict[str, Any] = Field(default_factory=dict)
    error: str = ""
    error_type: str = ""
    steps: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    goal_progress: float | None = None


class SessionState(BaseModel):
    """A session: its memory, and the latest execution of each entry point."""

    schema_version: int = SCHEMA_VERSION
    session_id: str
    agent_id: str = ""
    graph_id: str
    entry_point: str
    created_at: FiniteFloat
    updated_at: FiniteFloat
    memory: dict[str, Any] = Field(default_factory=dict)
    executions: dict[str, ExecutionState] = Field(default_factory=dict)
    """Executions by ``make_execution_key``."""

    @property
    def status(self) -> SessionStatus:
        """Combined status: unfinished executions before failed ones; active if there are none."""
        statuses = {execution.status for execution in self.executions.values()}
        return next((status for status in _WORST_FIRST if status in statuses), SessionStatus.ACTIVE)


def make_execution_key(graph_id: str, entry_point: str) -> str:
    """Return the key under which a session keeps the latest execution of an entry point."""
    return f"{graph_id}::{entry_point}"


def describe_invalid_state(error: Exception) -> str:
    """Describe a validation error in one line, without the values: memory may contain secrets."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    rows: list[Mapping[str, Any]] = errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(str(part) for part in row['loc']) or 'it'}: {row['msg']}" for row in rows[:3]]
    return "; ".join(lines) + (f"; and {len(rows) - 3} more" if len(rows) > 3 else "")
