"""The state of a session, as ``state.json`` holds it: values only."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, Field, FiniteFloat

SCHEMA_VERSION: Final = 1
"""What this version writes; a higher one on the disk is refused, since updating it would lose what is new."""

PATH_LENGTH: Final = 200
"""So many of the nodes that an execution completed are kept, the newest."""


class SessionStatus(StrEnum):
    """How an execution stands, or all of a session's together."""

    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TERMINATED = "terminated"
    """It was stopped by who watches over it, and may be brought back."""
    UNKNOWN = "unknown"
    """Another version's word."""


_WORST_FIRST: Final = (
    SessionStatus.ACTIVE,
    SessionStatus.PAUSED,
    SessionStatus.UNKNOWN,
    SessionStatus.FAILED,
    SessionStatus.TERMINATED,
    SessionStatus.CANCELLED,
    SessionStatus.COMPLETED,
)


def _status(value: object) -> object:
    known = isinstance(value, str) and value in set(SessionStatus)
    return value if known else SessionStatus.UNKNOWN


def _newest(value: object) -> object:
    return value[-PATH_LENGTH:] if isinstance(value, list) else value


class PendingNode(BaseModel):
    """A node that is running, or is to run next."""

    node_id: str
    visit: int
    thread: str = ""
    """Folder name of the conversation that it talks in; "" is its own."""
    input: dict[str, Any] = Field(default_factory=dict)


class ExecutionState(BaseModel):
    """One run of a graph; times are in seconds since the epoch, cost in dollars."""

    execution_id: str
    graph_id: str
    entry_point: str
    status: Annotated[SessionStatus, BeforeValidator(_status)]
    incarnation_id: str = ""
    started_at: float
    updated_at: float
    ended_at: float | None = None
    input: dict[str, Any] = Field(default_factory=dict)
    pending: list[PendingNode] = Field(default_factory=list)
    visits: dict[str, int] = Field(default_factory=dict)
    """How often each node was entered."""
    path: Annotated[list[str], BeforeValidator(_newest)] = Field(default_factory=list)
    """Ids of the nodes in the order they were completed, the newest ``PATH_LENGTH``."""
    results: dict[str, str] = Field(default_factory=dict)
    """Each node's outcome in its last visit."""
    outputs: dict[str, Any] = Field(default_factory=dict)
    error: str = ""
    error_type: str = ""
    steps: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    goal_progress: float | None = None


class SessionState(BaseModel):
    """A session: its memory, and its latest execution of each entry point."""

    schema_version: int = SCHEMA_VERSION
    session_id: str
    agent_id: str = ""
    graph_id: str
    entry_point: str
    created_at: FiniteFloat
    updated_at: FiniteFloat
    memory: dict[str, Any] = Field(default_factory=dict)
    executions: dict[str, ExecutionState] = Field(default_factory=dict)
    """By ``execution_key``."""

    @property
    def status(self) -> SessionStatus:
        """How the executions stand: what is still to do before what went wrong; active if there is none."""
        known = {execution.status for execution in self.executions.values()}
        return next((status for status in _WORST_FIRST if status in known), SessionStatus.ACTIVE)


def execution_key(graph_id: str, entry_point: str) -> str:
    """Return the key under which a session keeps the latest execution of an entry point."""
    return f"{graph_id}::{entry_point}"


def problem(error: Exception) -> str:
    """Say in a line what is wrong with what was read, without its values: memory may hold anything."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    rows: list[Mapping[str, Any]] = errors(include_url=False, include_context=False, include_input=False)
    said = [f"{'.'.join(str(part) for part in row['loc']) or 'it'}: {row['msg']}" for row in rows[:3]]
    return "; ".join(said) + (f"; and {len(rows) - 3} more" if len(rows) > 3 else "")
