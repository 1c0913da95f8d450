"""Tickets and their chat."""

from __future__ import annotations

from pydantic import Field

from queenright.api.base_model import NEXT, ApiModel
from queenright.api.terms import (
    AckChannel,
    AlertStatus,
    ChatRole,
    FindingKind,
    Severity,
    TicketAction,
    TicketStatus,
    Triage,
)


class ReceiverDelivery(ApiModel):
    """Deliveries of a ticket's alerts to one receiver of Alertmanager. Times in seconds since the epoch."""

    receiver: str
    status: AlertStatus
    first_at: float
    at: float = Field(description="Time of the last delivery.")


class TicketSilence(ApiModel):
    """The silence that mutes a ticket's notifications."""

    silence_id: str
    by: str
    comment: str
    until: float = Field(description="Seconds since the epoch.")


class Ticket(ApiModel):
    """An escalation about one worker and one cause. Times in seconds since the epoch."""

    ticket_id: str
    agent_id: str = Field(description="The worker's name.")
    session_id: str = Field(description="The worker's session.")
    node_id: str
    graph_id: str
    incarnation_id: str
    recent_verdicts: list[str]
    total_steps_checked: int
    steps_since_last_accept: int
    stall_minutes: float | None
    worker_trace_id: str
    worker_span_id: str

    created_at: float = Field(description="The same as `first_seen`.")
    severity: Severity = Field(description="Does not fall while the ticket is open.")
    cause: str
    judge_reasoning: str
    suggested_action: str
    evidence_snippet: str
    kind: FindingKind = Field(description="The finding that opened the ticket.")
    fingerprint: str
    related_kinds: list[FindingKind] = Field(description="Further findings with the same cause.")
    active_kinds: list[FindingKind] = Field(description="Findings that hold now, worst first.")
    finding_kind: FindingKind | None = Field(
        description="The worst finding when the ticket last opened, rose or reopened."
    )
    finding_evidence: str
    finding_since: float | None
    trouble_since: float | None = Field(description="When the finding that opened the ticket began.")
    spent_usd: float | None = Field(
        description="US dollars of the run's calls since `trouble_since`, at `updated_at`; null if unknown."
    )
    spent_tokens: int = Field(
        description="Input and output tokens of the run's model calls since `trouble_since`."
    )
    spent_unpriced_tokens: int = Field(description="Tokens of those calls that have no known price.")
    worker_excerpt: str = Field(description="The worker's last output at that time, secrets masked.")
    words_kind: FindingKind | None = Field(
        description="The finding that cause, reasoning and action describe."
    )
    words_severity: Severity | None = Field(
        description="The severity when cause, reasoning and action were written."
    )
    judge_model: str = Field(description="The model that wrote cause, reasoning and action; empty: unknown.")
    queen_model: str = Field(description="The model that wrote the analysis; empty: unknown.")
    status: TicketStatus
    occurrences: int
    first_seen: float
    last_seen: float
    updated_at: float
    condition_cleared_at: float | None = Field(
        description="Null while it holds, or if a person closed the ticket."
    )
    closed_at: float | None = Field(description="Null while it is open. A closed ticket does not change.")
    closed_reason: str

    triage_decision: Triage | None
    triage_reason: str
    triaged_at: float | None
    triaged_by: str
    untriaged: bool = Field(
        description="Whether triage timed out; the operator was then notified without it."
    )
    analysis: str
    urgency: str
    notified_severity: Severity | None = Field(
        description="Severity of the last notification; null: none was sent."
    )
    notified_at: float | None
    bumped_at: float | None = Field(description="Start of the interval to the next reminder.")
    reminders: int
    requests: int = Field(description="How often a person was asked to decide or act.")
    incident_id: str = Field(description="First ticket of the incident that it joined; empty: none.")
    incident_since: float | None = Field(description="When the operator was notified of the incident.")
    incident_resolved_at: float | None = Field(
        description="When a person resolved the incident in PagerDuty: no new ticket joins it."
    )
    acknowledged_at: float | None
    acknowledged_by: str
    acknowledged_via: AckChannel | None
    acknowledged_note: str

    trace_id: str
    span_id: str
    storm_id: str = Field(
        description="Shared by tickets of one incident: the storm's id, or the cause (provider:anthropic)."
    )

    trace_url: str = Field(
        default="", description="Link to the trace, by `alerting.trace_url`; empty: none, or in `Status`."
    )
    actions: list[TicketAction] = Field(
        description="What can be done now; `terminate`: stop its worker. Others are refused with 409."
    )
    silenced: TicketSilence | None = Field(description="Null: not silenced, or not known.")
    notified: list[ReceiverDelivery] = Field(
        description="Deliveries to receivers, one row per receiver and status; newest first."
    )


class TicketsPage(ApiModel):
    """Tickets, newest first."""

    tickets: list[Ticket]
    next: str | None = Field(description=NEXT)


class ChatMessage(ApiModel):
    """A message to or from the queen about a ticket."""

    id: str
    at: float = Field(description="Seconds since the epoch.")
    role: ChatRole
    by: str
    text: str
    question_id: str = Field(description="Id of the question that this answers; for a question, its own id.")
    outcome: str = Field(description="For an answer: `answered`, or `by_rule` if the model did not answer.")
    actions: list[str] = Field(
        default_factory=list,
        description="For an answer: the tools that the queen acted with, such as `nudge_worker`.",
    )


class ChatMessages(ApiModel):
    """Messages about a ticket, oldest first."""

    messages: list[ChatMessage]
