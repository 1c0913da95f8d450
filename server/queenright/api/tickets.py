"""Escalation tickets over HTTP, and what is said about them."""

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
    """That a receiver of Alertmanager was told. Times in seconds since the epoch."""

    model_config = shown(
        {"receiver": "pagerduty", "status": "firing", "first_at": NOW - 100, "at": NOW - 100}
    )

    receiver: str
    status: AlertStatus
    first_at: float
    at: float = Field(description="The last time.")


class TicketSilence(Wire):
    """Because of which silence nobody hears of a ticket."""

    model_config = shown({"silence_id": "b3c5", "by": "ada", "comment": "being mended", "until": NOW + 3600})

    silence_id: str
    by: str
    comment: str
    until: float = Field(description="Seconds since the epoch.")


class Ticket(Wire):
    """One worker's trouble: opened once, counted many times, closed once. Times in epoch seconds."""

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
            "judge_reasoning": "12 calls with the same arguments brought the same result.",
            "suggested_action": "Nudge it to try other words.",
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
            "triage_reason": "It does not come out of this by itself.",
            "triaged_at": NOW - 110,
            "triaged_by": "queen",
            "untriaged": False,
            "analysis": "The worker searches for the same words again and again.",
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
            "told": [example_of(ReceiverDelivery)],
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
    severity: Severity = Field(description="Never falls while the ticket is live.")
    cause: str
    judge_reasoning: str
    suggested_action: str
    evidence_snippet: str
    kind: FindingKind = Field(description="The finding that opened the ticket.")
    fingerprint: str
    related_kinds: list[FindingKind] = Field(description="Findings that were folded in.")
    active_kinds: list[FindingKind] = Field(description="What holds now, worst first.")
    finding_kind: FindingKind | None = Field(description="The worst when it was opened, rose, came back.")
    finding_evidence: str
    finding_since: float | None
    trouble_since: float | None = Field(description="When the finding that opened the ticket began.")
    spent_usd: float | None = Field(
        description="What the run's model calls cost since then, as of `updated_at`; null: no known price."
    )
    spent_tokens: int = Field(description="Likewise, the tokens that they read and wrote.")
    spent_unpriced_tokens: int = Field(description="Of these, those of calls without a known price.")
    worker_excerpt: str = Field(description="The worker's own last words then, secrets masked.")
    words_kind: FindingKind | None = Field(description="What cause, reasoning and action are about.")
    words_severity: Severity | None = Field(description="How bad it was when they were written.")
    judge_model: str = Field(description="Which model wrote cause, reasoning and action; empty: not known.")
    queen_model: str = Field(description="Which model wrote the analysis; empty: not known.")
    status: TicketStatus
    occurrences: int
    first_seen: float
    last_seen: float
    updated_at: float
    condition_cleared_at: float | None = Field(description="Null while it holds, and if a person ended it.")
    closed_at: float | None = Field(description="With this set it never changes again.")
    closed_reason: str

    triage_decision: Triage | None
    triage_reason: str
    triaged_at: float | None
    triaged_by: str
    untriaged: bool = Field(description="It went to the operator because triage did not answer in time.")
    analysis: str
    urgency: str
    notified_severity: Severity | None = Field(description="What the outside was last told; null: nothing.")
    notified_at: float | None
    bumped_at: float | None = Field(description="Reminders count from here.")
    reminders: int
    requests: int = Field(description="How often it was brought up for a person to decide or do something.")
    incident_id: str = Field(description="First ticket of the incident that it joined, or empty.")
    incident_since: float | None = Field(description="When the operator was told of that one.")
    incident_resolved_at: float | None = Field(
        description="When a person resolved its incident in PagerDuty: no new ticket joins that."
    )
    acknowledged_at: float | None
    acknowledged_by: str
    acknowledged_via: Way | None
    acknowledged_note: str

    trace_id: str
    span_id: str
    storm_id: str = Field(
        description="What it shares with others: a storm's id, or its cause (provider:anthropic)."
    )

    age: Age = Field(description="Since it was opened, in words.")
    silenced: TicketSilence | None = Field(description="Null: somebody hears of it, or it is not known.")
    told: list[ReceiverDelivery] = Field(
        description="Deliveries to receivers, one row per receiver and status; newest first."
    )


class TicketsPage(Wire):
    """Tickets, newest first."""

    model_config = shown({"tickets": [example_of(Ticket)], "next": None})

    tickets: list[Ticket]
    next: str | None = Field(description="The cursor of the next page; null on the last one.")


class ChatMessage(Wire):
    """One thing that was said to the queen about a ticket, or by her."""

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
    question_id: str = Field(description="Of an answer: what it answers; of a question: its own id.")
    outcome: str = Field(description="Of an answer: `answered`, or `by_rule` where the model gave none.")


class ChatMessages(Wire):
    """What was said about a ticket, oldest first."""

    model_config = shown({"messages": [example_of(ChatMessage)]})

    messages: list[ChatMessage]
