"""Workers over HTTP: how they are, how they were, and their heartbeats."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from queenright.api.breakers import Breaker
from queenright.api.slots import AgentSlot
from queenright.api.terms import (
    FindingKind,
    Health,
    LadderLevel,
    Phase,
    Reading,
    SessionOutcome,
    Severity,
    State,
    Waiting,
)
from queenright.api.wire import NOW, Age, RelativeToNow, Wire, example_of, shown

NEXT: Final = "The cursor of the next page; null on the last one."


class Finding(Wire):
    """What one detector saw in a worker."""

    model_config = shown(
        {
            "kind": "doom_loop",
            "severity": "high",
            "evidence": "search was called 12 times with the same arguments and the same result",
            "since": NOW - 120,
            "ticket": True,
            "shadow": False,
        }
    )

    kind: FindingKind
    severity: Severity
    evidence: str
    since: float = Field(description="When the condition began, in seconds since the epoch.")
    ticket: bool = Field(description="False: it is shown, and never a reason for a ticket.")
    shadow: bool = Field(description="True: its detector is on trial, and nothing follows from it.")


class AgentRow(Wire):
    """One session of a worker: its state and vital signs. Times are in seconds since the epoch."""

    model_config = shown(
        {
            "agent_id": "researcher",
            "session_id": "session-1",
            "task_id": "report-7",
            "incarnation_id": "018f6f7e-0000-7000-8000-000000000001",
            "framework": "queenright",
            "node_id": "search",
            "health": "stuck",
            "state": "stuck",
            "state_since": NOW - 120,
            "state_for": "2 min",
            "reason": "search was called 12 times with the same arguments and the same result",
            "ended": False,
            "outcome": "",
            "activity": "working: model",
            "phase": "llm",
            "tool": "",
            "waiting": "",
            "question": "",
            "steps": 20,
            "bad_steps": 12,
            "tool_calls": 19,
            "errors": 0,
            "tokens": 41_200,
            "cost_usd": 0.31,
            "unpriced_tokens": 0,
            "verdicts": ["ACCEPT", "RETRY", "RETRY"],
            "last_activity": NOW - 2,
            "last_progress": NOW - 140,
            "active_ago": "2 s",
            "progress_ago": "2 min",
            "findings": [example_of(Finding)],
            "shadow_findings": [],
        }
    )

    agent_id: str
    session_id: str
    task_id: str = Field(description="What the session is about; the session itself if nobody said.")
    incarnation_id: str = Field(description="Which life of the worker; empty: not known.")
    framework: str
    node_id: str = Field(description="The node of its graph where it is; empty: not known.")
    health: Health = Field(description="Health of a session that runs; empty once it has ended.")
    state: State = Field(description="Health, or `terminated` for a session that was stopped.")
    state_since: float
    state_for: Age = Field(description="The same in words.")
    reason: str = Field(description="Why it is in this state; empty if it is well.")
    ended: bool
    outcome: SessionOutcome = Field(description="How it ended; empty while it goes on.")
    activity: str = Field(
        description="What it does now: working, waiting for something, paused or idle; empty if it has ended."
    )
    phase: Phase = Field(description="What it is in the middle of.")
    tool: str = Field(description="The tool that runs; empty if none does.")
    waiting: Waiting = Field(description="Why it is rightly idle; empty if it is not.")
    question: str = Field(description="What a person is asked; the agent's words. Empty if nobody is.")
    steps: int
    bad_steps: int = Field(description="Steps since the last one that was accepted.")
    tool_calls: int
    errors: int
    tokens: int
    cost_usd: float | None = Field(
        description="US dollars that its model calls cost; null if no call has a known price."
    )
    unpriced_tokens: int = Field(description="Tokens of model calls without a known price.")
    verdicts: list[str] = Field(description="Of the last steps, at most twelve; oldest first.")
    last_activity: float
    last_progress: float | None
    active_ago: Age = Field(description="When it was last active, in words.")
    progress_ago: Age = Field(description="When it last got further, in words; a dash: never.")
    findings: list[Finding]
    shadow_findings: list[Finding] = Field(description="What detectors on trial say.")


class Signal(Wire):
    """One of the things that health is judged by."""

    model_config = shown(
        {"name": "tool_calls", "verdict": "bad", "evidence": "12 of the last 12 calls are the same"}
    )

    name: str
    verdict: Reading
    evidence: str = Field(description="The numbers, in at most 300 characters.")


class HealthMetrics(Wire):
    """What a worker has used and done in its session."""

    model_config = shown(
        {
            "uptime_seconds": 600.0,
            "token_count": 41_200,
            "error_count": 0,
            "tool_call_count": 19,
            "intervention_count": 1,
        }
    )

    uptime_seconds: Annotated[float, RelativeToNow()] = Field(
        description="Since this incarnation began; until its end if it has ended."
    )
    token_count: int
    error_count: int
    tool_call_count: int
    intervention_count: int


class Ladder(Wire):
    """How far the interventions have got for one life of a worker. Times in seconds since the epoch."""

    model_config = shown(
        {
            "agent_id": "researcher",
            "session_id": "session-1",
            "incarnation_id": "018f6f7e-0000-7000-8000-000000000001",
            "level": "nudged",
            "nudges": 1,
            "trouble_since": NOW - 120,
            "progress_before": NOW - 140,
            "needs_checkpoint": False,
            "acted_at": NOW - 60,
            "until": NOW + 240,
            "escalation_id": "",
            "told": True,
            "delivered": True,
            "is_recoverable": True,
            "by": "ladder",
            "reason": "",
        }
    )

    agent_id: str
    session_id: str
    incarnation_id: str
    level: LadderLevel
    nudges: int
    trouble_since: float
    progress_before: float | None = Field(description="The last progress before; a later one ends it.")
    needs_checkpoint: bool = Field(description="Only a checkpoint ends it: its last one is stale.")
    acted_at: float | None = Field(description="When something was last done.")
    until: float | None = Field(description="Until when what was done last has time to show.")
    escalation_id: str
    told: bool = Field(description="Of one that has to hand off: whether it has been told so.")
    delivered: bool = Field(description="Whether the last nudge got there, or waits to be fetched.")
    is_recoverable: bool = Field(description="Whether it is brought back once it has been terminated.")
    by: str = Field(description="Who wants it to end.")
    reason: str


class AgentHealth(AgentRow):
    """How a worker is, and why: every signal with its evidence. Times in seconds since the epoch."""

    model_config = shown(
        example_of(AgentRow)
        | {
            "state_changed_at": NOW - 120,
            "last_heartbeat": None,
            "last_checkpoint": NOW - 200,
            "metrics": example_of(HealthMetrics),
            "signals": [example_of(Signal)],
            "circuit_breakers": [example_of(Breaker)],
            "ladder": example_of(Ladder),
        }
    )

    state_changed_at: float
    last_heartbeat: float | None
    last_checkpoint: float | None
    metrics: HealthMetrics
    signals: list[Signal]
    circuit_breakers: list[Breaker]
    ladder: Ladder | None = Field(description="Null where there is nothing to intervene in.")


class AgentHealthPage(Wire):
    """The health of workers, by name and session."""

    model_config = shown({"agents": [example_of(AgentHealth)], "next": None})

    agents: list[AgentHealth]
    next: str | None = Field(description=NEXT)


class HistoryRow(Wire):
    """One thing that happened to a worker's health, and the state that it was in from then on."""

    model_config = shown(
        {
            "seq": 4711,
            "time": NOW - 120,
            "type": "health_state_changed",
            "state": "stuck",
            "reason": "search was called 12 times with the same arguments and the same result",
            "session_id": "session-1",
            "incarnation_id": "018f6f7e-0000-7000-8000-000000000001",
            "event_id": "018f6f7e-0000-7000-8000-0000000000aa",
            "data": {"from": "healthy", "to": "stuck", "reason": "…", "findings": []},
        }
    )

    seq: int = Field(description="Its place in the event log.")
    time: float = Field(description="Seconds since the epoch.")
    type: str = Field(description="The event's type.")
    state: State | None = Field(description="Null: nothing was logged of its state up to then.")
    reason: str
    session_id: str
    incarnation_id: str
    event_id: str
    data: dict[str, Any] = Field(description="What the event says; its keys by type are in `docs/events.md`.")


class HistoryPage(Wire):
    """What happened to a worker, oldest first; `next` leads to what came before."""

    model_config = shown({"history": [example_of(HistoryRow)], "next": None})

    history: list[HistoryRow]
    next: str | None = Field(description="The cursor of what came before these; null if nothing did.")


class Heartbeat(Wire):
    """A heartbeat, as it was understood. Times are in seconds since the epoch."""

    model_config = shown(
        {
            "agent_id": "researcher",
            "session_id": "report-7",
            "incarnation_id": "",
            "task_id": "report-7",
            "timestamp": NOW,
            "phase": "search",
            "last_tool_call": NOW - 5,
            "token_count": 1200,
            "error_count": 0,
            "progress_indicator": "12 of 40 pages",
            "interval": 300.0,
        }
    )

    agent_id: str
    session_id: str
    incarnation_id: str = Field(description="Empty: not known.")
    task_id: str
    timestamp: float | None
    phase: str = Field(description="The worker's own word.")
    last_tool_call: float | None
    token_count: int | None
    error_count: int | None
    progress_indicator: str | float | None = Field(description="Whatever the worker calls its progress.")
    interval: float | None = Field(description="Seconds until the next one is due.")


class HeartbeatReceipt(Wire):
    """A heartbeat is durable."""

    model_config = shown({"agent_id": "researcher"})

    agent_id: str


class AgentsPage(Wire):
    """Workers by name, each of their sessions."""

    model_config = shown({"loaded": [example_of(AgentSlot)], "agents": [example_of(AgentRow)], "next": None})

    loaded: list[AgentSlot] = Field(
        description="Those that run inside the service, all of them on each page."
    )
    agents: list[AgentRow]
    next: str | None = Field(description=NEXT)
