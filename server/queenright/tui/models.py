"""
The models that the screens show: workers, tickets, breakers, loaded agents, events.

Each is made from a row of the HTTP API (``docs/api.md``). Times are in seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self

WORST_FIRST: Final = ("failing", "stuck", "degraded", "healthy")
"""Health states."""

SEVERITIES: Final = ("low", "medium", "high", "critical")

OPEN_STATUSES: Final = frozenset({"open", "intervening", "acknowledged"})
"""Statuses of open tickets."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One session of a worker."""

    agent_id: str
    session_id: str
    incarnation_id: str
    state: str
    state_since: float
    reason: str
    ended: bool
    outcome: str
    node_id: str
    activity: str
    waiting: str
    question: str
    steps: int
    bad_steps: int
    errors: int
    tokens: int
    cost_usd: float | None
    verdicts: tuple[str, ...]
    last_activity: float | None
    last_progress: float | None
    findings: tuple[str, ...]

    @classmethod
    def of(cls, row: Row) -> Self:
        """Return the worker of a row of ``GET /api/agents``."""
        return cls(
            agent_id=row["agent_id"],
            session_id=row["session_id"],
            incarnation_id=row["incarnation_id"] or "",
            state=row["state"],
            state_since=row["state_since"],
            reason=row["reason"] or "",
            ended=row["ended"],
            outcome=row["outcome"],
            node_id=row["node_id"] or "",
            activity=row["activity"],
            waiting=row["waiting"] or "",
            question=row["question"] or "",
            steps=row["steps"],
            bad_steps=row["bad_steps"],
            errors=row["errors"],
            tokens=row["tokens"] or 0,
            cost_usd=row["cost_usd"],
            verdicts=tuple(row["verdicts"]),
            last_activity=row["last_activity"],
            last_progress=row["last_progress"],
            findings=tuple(one["kind"].replace("_", " ") for one in row["findings"]),
        )

    @property
    def key(self) -> str:
        """Key of its row: name and session."""
        return f"{self.agent_id}\n{self.session_id}"

    @property
    def word(self) -> str:
        """Its health, or the outcome of an ended session."""
        return self.outcome or self.state

    @property
    def current_activity(self) -> str:
        """Current activity; empty for an ended session."""
        return f"waiting: {self.question}" if self.question else self.activity.removeprefix("working: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A ticket about one worker."""

    ticket_id: str
    agent_id: str
    session_id: str
    severity: str
    status: str
    kind: str
    cause: str
    suggested_action: str
    evidence: str
    occurrences: int
    first_seen: float
    acknowledged_by: str

    @classmethod
    def of(cls, row: Row) -> Self:
        """Return the ticket of a row of ``GET /api/tickets``."""
        return cls(
            ticket_id=row["ticket_id"],
            agent_id=row["worker_agent_id"],
            session_id=row["worker_session_id"],
            severity=row["severity"],
            status=row["status"],
            kind=row["kind"],
            cause=row["cause"],
            suggested_action=row["suggested_action"],
            evidence=row["evidence_snippet"],
            occurrences=row["occurrences"],
            first_seen=row["first_seen"],
            acknowledged_by=row["acknowledged_by"] or "",
        )

    @property
    def is_open(self) -> bool:
        """Whether the ticket is open."""
        return self.status in OPEN_STATUSES

    @property
    def rank(self) -> tuple[bool, int, float]:
        """Sort key: open and most severe first, then newest."""
        severity = SEVERITIES.index(self.severity) if self.severity in SEVERITIES else 0
        return (not self.is_open, -severity if self.is_open else 0, -self.first_seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """A circuit breaker."""

    name: str
    state: str
    failures: int
    threshold: int
    reason: str
    half_open_at: float | None

    @classmethod
    def of(cls, row: Row) -> Self:
        """Return the breaker of a row of ``GET /api/breakers``."""
        return cls(
            name=row["name"],
            state=row["state"],
            failures=row["failures"],
            threshold=row["threshold"],
            reason=row["reason"] or "",
            half_open_at=row["half_open_at"],
        )

    @property
    def rank(self) -> tuple[int, str]:
        """Sort key: open first."""
        return (("open", "half_open", "closed").index(self.state), self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedAgent:
    """An agent that runs inside the service."""

    agent_id: str
    active_graph: str
    """The graph that receives messages."""
    graphs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A graph of a loaded agent."""

    graph_id: str
    agent_id: str
    active: bool
    primary: bool
    running: int
    """Number of active runs."""
    waiting: tuple[str, ...]
    """Nodes that wait for input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatEntry:
    """One message of a conversation."""

    by: str
    text: str
    at: float
    is_own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """Stored messages of a graph's active session, else of its newest."""

    entries: tuple[ChatEntry, ...] = ()
    until: float = 0.0
    """Time of the last message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetEvent:
    """One event; ``docs/events.md`` lists the keys of ``data`` by type."""

    type: str
    time: float
    agent_id: str = ""
    session_id: str = ""
    graph_id: str = ""
    node_id: str = ""
    execution_id: str = ""
    id: str = ""
    data: Row = field(default_factory=dict)

    @classmethod
    def of(cls, row: Row) -> Self:
        """Return the event for a row of the event stream, where ``time`` is ISO 8601."""
        time = row["time"]
        return cls(
            type=str(row["type"]),
            time=time if isinstance(time, int | float) else datetime.fromisoformat(time).timestamp(),
            agent_id=row.get("agent_id") or "",
            session_id=row.get("session_id") or "",
            graph_id=row.get("graph_id") or "",
            node_id=row.get("node_id") or "",
            execution_id=row.get("execution_id") or "",
            id=row.get("id") or "",
            data=row.get("data") or {},
        )
