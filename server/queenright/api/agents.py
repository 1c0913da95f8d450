"""Workers: their health, history and heartbeats."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from queenright.api.agent_slot import AgentSlot
from queenright.api.base_model import NEXT, ApiModel
from queenright.api.breakers import Breaker
from queenright.api.terms import (
    ActivityKind,
    FindingKind,
    Health,
    LadderLevel,
    Phase,
    Reading,
    SessionOutcome,
    Severity,
    State,
    Waiting,
    WorkerAction,
)


class Finding(ApiModel):
    """A finding of one detector about a worker."""

    kind: FindingKind
    severity: Severity
    evidence: str
    since: float = Field(description="When the condition began, in seconds since the epoch.")
    ticket: bool = Field(description="Whether the finding opens a ticket. If not, it is only shown.")
    shadow: bool = Field(description="Whether its detector is in shadow mode; if so, it has no effect.")


class AgentRow(ApiModel):
    """One session of a worker: its state and vital signs. Times are in seconds since the epoch."""

    agent_id: str
    session_id: str
    task_id: str = Field(description="The task of the session; by default the session's id.")
    incarnation_id: str = Field(description="The worker's incarnation; empty: unknown.")
    framework: str
    owner: str = Field(description="Who it works for, such as `ada@laptop` or a team; empty: unknown.")
    repository: str = Field(description="The repository or folder in which it works; empty: unknown.")
    node_id: str = Field(description="The current node of its graph; empty: unknown.")
    health: Health = Field(description="Health of a running session; empty after its end.")
    state: State = Field(description="Health, or `terminated` for a session that was stopped.")
    state_since: float
    started_at: float
    reason: str = Field(description="The reason for the state; empty if the worker is healthy.")
    ended: bool
    outcome: SessionOutcome = Field(description="How the session ended; empty while it runs.")
    activity: str = Field(
        description="Current activity: working, waiting, paused, held by its guard, idle; empty if it ended."
    )
    activity_kind: ActivityKind = Field(description="The kind of its activity; empty if it ended.")
    phase: Phase = Field(description="The phase of its step.")
    tool: str = Field(description="The running tool; empty: none.")
    waiting: Waiting = Field(description="Why the worker waits; empty if it does not.")
    waiting_since: float | None = Field(description="Start of the wait; null if the worker does not wait.")
    limited_until: float | None = Field(
        description="When the worker retries after a rate limit of its model provider; null if there is none."
    )
    question: str = Field(description="The worker's question to the user; empty if there is none.")
    steps: int
    bad_steps: int = Field(description="Bad steps since the last accepted one.")
    tool_calls: int
    errors: int
    tokens: int
    cost_usd: float | None = Field(
        description="US dollars of its model calls; null if no call has a known price."
    )
    unpriced_tokens: int = Field(description="Tokens of model calls without a known price.")
    actions: list[WorkerAction] = Field(description="The actions that are possible now.")
    verdicts: list[str] = Field(description="Verdicts of the last steps, at most twelve; oldest first.")
    last_activity: float
    last_progress: float | None
    findings: list[Finding]
    shadow_findings: list[Finding] = Field(description="Findings of detectors in shadow mode.")


class Signal(ApiModel):
    """A health signal."""

    name: str
    verdict: Reading
    evidence: str = Field(description="The numbers, in at most 300 characters.")


class HealthMetrics(ApiModel):
    """Usage of a worker in its session."""

    uptime_seconds: float = Field(description="Since the incarnation started; until its end if it has ended.")
    token_count: int
    error_count: int
    tool_call_count: int
    intervention_count: int


class Ladder(ApiModel):
    """The interventions on one incarnation of a worker. Times in seconds since the epoch."""

    agent_id: str
    session_id: str
    incarnation_id: str
    level: LadderLevel
    nudges: int
    trouble_since: float
    progress_before: float | None = Field(
        description="The last progress before the trouble; later progress ends the ladder."
    )
    needs_checkpoint: bool = Field(
        description="Whether only a new checkpoint ends the ladder, because the last one is stale."
    )
    acted_at: float | None = Field(description="Time of the last intervention.")
    until: float | None = Field(description="End of the wait for the effect of the last intervention.")
    escalation_id: str
    is_informed: bool = Field(description="Whether the worker was told to hand off, if that was decided.")
    undelivered: str = Field(
        description="Why the last nudge did not reach the worker; empty if it was delivered or queued."
    )
    is_recoverable: bool = Field(description="Whether the worker is recovered after a termination.")
    by: str = Field(description="Who requested the termination.")
    reason: str


class AgentHealth(AgentRow):
    """The health of a worker: every signal with its evidence. Times in seconds since the epoch."""

    state_changed_at: float
    last_heartbeat: float | None
    last_checkpoint: float | None
    metrics: HealthMetrics
    signals: list[Signal]
    circuit_breakers: list[Breaker]
    ladder: Ladder | None = Field(description="Null: no intervention is due or in progress.")


class AgentHealthPage(ApiModel):
    """The health of workers, by name and session."""

    agents: list[AgentHealth]
    next: str | None = Field(description=NEXT)


class HistoryRow(ApiModel):
    """An event that concerns a worker's health, and the state after it."""

    seq: int = Field(description="Its number in the event log.")
    time: float = Field(description="Seconds since the epoch.")
    type: str = Field(description="The event's type.")
    state: State | None = Field(description="Null if its earlier state was not logged.")
    reason: str
    session_id: str
    incarnation_id: str
    event_id: str
    data: dict[str, Any] = Field(description="The event's data; `docs/events.md` lists the keys by type.")


class HistoryPage(ApiModel):
    """Events of a worker, oldest first; `next` leads to earlier ones."""

    history: list[HistoryRow]
    next: str | None = Field(description="The cursor of earlier events; null: none.")


class Heartbeat(ApiModel):
    """A heartbeat. Times are in seconds since the epoch."""

    agent_id: str
    session_id: str
    incarnation_id: str = Field(description="Empty: unknown.")
    task_id: str
    timestamp: float | None
    phase: str = Field(description="The phase, as the worker names it.")
    last_tool_call: float | None
    token_count: int | None
    error_count: int | None
    progress_indicator: str | float | None = Field(description="Progress in the worker's own terms.")
    interval: float | None = Field(description="Seconds until the next heartbeat is due.")


class HeartbeatReceipt(ApiModel):
    """The heartbeat was stored."""

    agent_id: str


class AgentCounts(ApiModel):
    """
    Sessions by health, activity, owner and repository.

    Each filter counts the sessions that match the other filters, so that a client can offer its values.
    """

    health: dict[str, int] = Field(
        description="By `healthy`, `degraded`, `stuck`, `failing` and `ended`.",
        examples=[{"failing": 0, "stuck": 1, "degraded": 0, "healthy": 11, "ended": 3}],
    )
    activity: dict[str, int] = Field(
        description="Running sessions: `working`, `waiting`, `queued`, `paused`, `held` and `idle`.",
        examples=[{"working": 9, "waiting": 2, "queued": 0, "paused": 0, "held": 0, "idle": 1}],
    )
    owner: dict[str, int] = Field(
        description="The 50 most frequent; sessions without a known owner are not counted.",
        examples=[{"ada@laptop": 12}],
    )
    repository: dict[str, int] = Field(
        description="The 50 most frequent; sessions without a known repository are not counted.",
        examples=[{"website": 12}],
    )


class AgentsPage(ApiModel):
    """Sessions of workers, in the requested order."""

    loaded: list[AgentSlot] = Field(description="All agents that run inside the service, on every page.")
    agents: list[AgentRow]
    total: int = Field(description="Sessions that match the filters, on all pages.")
    counts: AgentCounts
    next: str | None = Field(description=NEXT)
