"""Tickets and their chat."""

from __future__ import annotations

from pydantic import Field

from queenright.api.terms import (
    AlertStatus,
    ChatRole,
    FindingKind,
    Severity,
    TicketStatus,
    Triage,
    Way,
)
from queenright.api.wire import NOW, Age, Deprecated, Wire, example_of, shown


class ReceiverDelivery(Wire):
    """Deliveries of a ticket's alerts to one receiver of Alertmanager. Times in seconds since the epoch."""

    model_config = shown(
        {"receiver": "pagerduty", "status": "firing", "first_at": NOW - 100, "at": NOW - 100}
    )

    receiver: str
    status: AlertStatus
    first_at: float
    at: float = Field(description="Time of the last delivery.")


class TicketSilence(Wire):
    """The silence that mutes a ticket's notifications."""

    model_config = shown({"silence_id": "b3c5", "by": "ada", "comment": "being fixed", "until": NOW + 3600})

    silence_id: str
    by: str
    comment: str
    until: float = Field(description="Seconds since the epoch.")


class Ticket(Wire):
    """An escalation about one worker and one cause. Times in seconds since the epoch."""

    model_config = shown(
        {
            "agent_id": "researcher",
            "session_id": "session-1",
            "worker_agent_id": "researcher",
            "worker_session_id": "session-1",
            "worker_node_id": "search",
            "worker_graph_id": "research",
            "incarnation_id": "018f6f7e-0000-7000-8000-000000000001",
            "recent_verdicts": ["ACCEPT", "RETRY", "RETRY"],
            "total_steps_checked": 20,
            "steps_since_last_accept": 12,
            "stall_minutes": None,
            "worker_trace_id": "",
            "worker_span_id": "",
            "ticket_id": "018f6f7e-0000-7000-8000-0000000000c1",
            "created_at": "2026-01-24T09:58:00.000+00:00",
            "severity": "high",
            "cause": "The same search is repeated",
            "judge_reasoning": "12 calls with the same arguments returned the same result.",
            "suggested_action": "Nudge it to try another query.",
            "evidence_snippet": "search(q='bees') -> 0 results, 12 times",
            "kind": "doom_loop",
            "fingerprint": "0f" * 16,
            "related_kinds": ["retry_storm"],
            "active_kinds": ["doom_loop"],
            "finding_kind": "doom_loop",
            "finding_evidence": "search was called 12 times with the same arguments and the same result",
            "finding_since": NOW - 130,
            "worker_excerpt": "I will search once more.",
            "words_kind": "doom_loop",
            "words_severity": "high",
            "judge_model": "",
            "queen_model": "",
            "status": "intervening",
            "occurrences": 4,
            "first_seen": NOW - 120,
            "last_seen": NOW,
            "updated_at": NOW,
            "condition_cleared_at": None,
            "closed_at": None,
            "closed_reason": "",
            "triage_decision": "intervene",
            "triage_reason": "It does not recover by itself.",
            "triaged_at": NOW - 110,
            "triaged_by": "queen",
            "untriaged": False,
            "analysis": "The worker repeats the same search.",
            "urgency": "soon",
            "notified_severity": "high",
            "notified_at": NOW - 110,
            "bumped_at": NOW - 110,
            "reminders": 0,
            "requests": 0,
            "incident_id": "",
            "incident_since": None,
            "incident_resolved_at": None,
            "acknowledged_at": None,
            "acknowledged_by": "",
            "acknowledged_via": None,
            "acknowledged_note": "",
            "trace_id": "",
            "span_id": "",
            "storm_id": "",
            "trouble_since": NOW - 240,
            "spent_usd": 0.42,
            "spent_tokens": 61_000,
            "spent_unpriced_tokens": 0,
            "age": "2 min",
            "silenced": None,
            "notified": [example_of(ReceiverDelivery)],
        }
    )

    ticket_id: str
    agent_id: str = Field(default="", description="The worker's name.")
    session_id: str = Field(default="", description="The worker's session.")
    worker_agent_id: Deprecated[str] = Field(description="The same as `agent_id`.")
    worker_session_id: Deprecated[str] = Field(description="The same as `session_id`.")
    worker_node_id: str
    worker_graph_id: str
    incarnation_id: str
    recent_verdicts: list[str]
    total_steps_checked: int
    steps_since_last_accept: int
    stall_minutes: float | None
    worker_trace_id: str
    worker_span_id: str

    created_at: str = Field(description="`first_seen` as ISO 8601, UTC.")
    severity: Severity = Field(description="Does not fall while the ticket is open.")
    cause: str
    judge_reasoning: str
    suggested_action: str
    evidence_snippet: str
    kind: FindingKind = Field(description="The finding that opened the ticket.")
    fingerprint: str
    related_kinds: list[FindingKind] = Field(description="Further findings with the same cause.")
    active_kinds: list[FindingKind] = Field(description="Findings that hold now, worst first.")
    finding_kind: FindingKind | None = Field(description="The worst when it opened, rose or reopened.")
    finding_evidence: str
    finding_since: float | None
    trouble_since: float | None = Field(description="When the finding that opened the ticket began.")
    spent_usd: float | None = Field(
        description="US dollars of the run's model calls since then, at `updated_at`; null: unknown price."
    )
    spent_tokens: int = Field(description="Tokens of these calls, input and output.")
    spent_unpriced_tokens: int = Field(description="Tokens of the calls without a known price.")
    worker_excerpt: str = Field(description="The worker's last output at that time, secrets masked.")
    words_kind: FindingKind | None = Field(
        description="The finding that cause, reasoning and action describe."
    )
    words_severity: Severity | None = Field(description="The severity when they were written.")
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
    untriaged: bool = Field(description="Triage timed out; the operator was notified without it.")
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
    acknowledged_via: Way | None
    acknowledged_note: str

    trace_id: str
    span_id: str
    storm_id: str = Field(
        description="Shared by tickets of one incident: the storm's id, or the cause (provider:anthropic)."
    )

    age: Age = Field(description="Time since it opened, in words.")
    silenced: TicketSilence | None = Field(description="Null: not silenced, or not known.")
    notified: list[ReceiverDelivery] = Field(
        description="Deliveries to receivers, one row per receiver and status; newest first."
    )


class TicketsPage(Wire):
    """Tickets, newest first."""

    model_config = shown({"tickets": [example_of(Ticket)], "next": None})

    tickets: list[Ticket]
    next: str | None = Field(description="The cursor of the next page; null on the last one.")


class ChatMessage(Wire):
    """A message to or from the queen about a ticket."""

    model_config = shown(
        {
            "id": "018f6f7e-0000-7000-8000-000000000ab2",
            "at": NOW,
            "role": "queen",
            "by": "queen",
            "text": "It repeats one search. I would nudge it.",
            "question_id": "018f6f7e-0000-7000-8000-000000000ab1",
            "outcome": "answered",
        }
    )

    id: str
    at: float = Field(description="Seconds since the epoch.")
    role: ChatRole
    by: str
    text: str
    question_id: str = Field(description="Id of the question; of a question, its own id.")
    outcome: str = Field(description="Of an answer: `answered`, or `by_rule` if the model did not answer.")


class ChatMessages(Wire):
    """Messages about a ticket, oldest first."""

    model_config = shown({"messages": [example_of(ChatMessage)]})

    messages: list[ChatMessage]
