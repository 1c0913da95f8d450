"""Models of the service's status."""

from __future__ import annotations

from pydantic import Field

from queenright.api.agents import AgentRow
from queenright.api.alerts import Outbox
from queenright.api.base_model import ApiModel
from queenright.api.terms import BreakerState, Decision, LadderLevel, RecoveryState


class Ready(ApiModel):
    """Whether the service is ready; if not, what is missing."""

    ready: bool
    missing: list[str]


class StatusEmergencyStop(ApiModel):
    """The state of the emergency stop."""

    on: bool
    by: str
    reason: str
    changed_at: float | None = Field(default=None, description="When it was last set; null: never.")


class Storm(ApiModel):
    """The storm: many workers whose health worsens at once."""

    id: str = Field(description="Empty: no storm.")
    workers: int
    since: float | None = Field(description="Seconds since the epoch.")


class Budget(ApiModel):
    """The limit on interventions per minute."""

    most: int = Field(description="Per minute.")
    used: int
    free_at: float = Field(description="When the next one is allowed, in seconds since the epoch.")


class StatusLadder(ApiModel):
    """The interventions on a worker so far, and the next one."""

    agent_id: str
    session_id: str
    level: LadderLevel
    what: str
    trouble_since: float = Field(default=0.0, description="Seconds since the epoch.")
    acted_at: float | None = Field(default=None, description="Time of the last intervention.")
    until: float | None
    next: str = Field(description="The next intervention; empty if there is none.")
    next_at: float | None


class StatusEscalation(ApiModel):
    """An escalation without a decision."""

    escalation_id: str
    agent_id: str
    reason: str
    options: list[Decision]
    deadline: float


class StatusApproval(ApiModel):
    """A pending request to terminate a worker."""

    approval_id: str
    agent_id: str
    ticket_id: str
    reason: str
    by: str
    expires_at: float


class StatusBreaker(ApiModel):
    """A circuit breaker that is not closed."""

    name: str
    state: BreakerState
    session_id: str
    failures: int
    threshold: int
    reason: str
    half_open_at: float | None


class StatusRecovery(ApiModel):
    """A recovery attempt."""

    recovery_id: str
    task_id: str
    agent_id: str
    state: RecoveryState
    exhausted: bool
    attempt: int
    from_start: bool
    reason: str
    created_at: float = Field(default=0.0, description="Seconds since the epoch.")
    not_before: float = Field(
        default=0.0, description="The earliest time at which a waiting recovery starts."
    )


class Acting(ApiModel):
    """Interventions in progress, and what limits them."""

    emergency_stop: StatusEmergencyStop
    storm: Storm
    budget: Budget
    notices: list[str] = Field(description="Which models the rules replace, and why; one sentence each.")
    dry_run: bool = Field(description="Whether interventions are only logged, not carried out.")
    ladders: list[StatusLadder]
    ladders_more: int = Field(description="Ladders that are not shown.")
    escalations: list[StatusEscalation]
    escalations_more: int
    approvals: list[StatusApproval]
    approvals_more: int
    breakers: list[StatusBreaker]
    breakers_known: int = Field(description="All breakers, closed or not.")
    breakers_more: int
    recoveries: list[StatusRecovery]


class FeedLine(ApiModel):
    """An event as a sentence."""

    at: float = Field(default=0.0, description="Seconds since the epoch.")
    kind: str = Field(description="Its subject: a health state, `ticket`, `queen`, `page`, ...")
    text: str
    id: str = Field(description="The event's id.")
    ticket: str = Field(description="The id of its ticket; empty: none.")


class StandInMessage(ApiModel):
    """A message that the stand-in for Slack and PagerDuty received."""

    at: float = Field(default=0.0, description="Seconds since the epoch.")
    channel: str
    status: str
    title: str
    text: str


class Status(ApiModel):
    """Current state of the service and its fleet."""

    at: float = Field(default=0.0, description="The time of the response, in seconds since the epoch.")
    started_at: float = Field(default=0.0, description="When the service started.")
    counts: dict[str, int] = Field(description="Running workers by state, the worst first.")
    agents: list[AgentRow] = Field(
        description="The 200 worst sessions: running ones, and ended ones with an open ticket or an active "
        "recovery, which count as failing. `/api/agents` has all."
    )
    agents_left_out: int = Field(description="Running sessions that are not shown.")
    tickets: list[str] = Field(description="Ids of the newest 100 open tickets; `/api/tickets` has all.")
    outbox: Outbox
    feed: list[FeedLine] = Field(description="Newest first.")
    not_ready: list[str] = Field(description="Why the service is not ready; empty if it is ready.")
    acting: Acting
    paged: list[StandInMessage] = Field(description="Messages that the stand-in received, newest first.")
