"""
Escalation tickets: the draft that a judge writes, and the ticket that the service stores.

A model writes a ``TicketDraft``. The service sets the worker, counts, id and times of an
``EscalationTicket``. ``ticket_lifecycle`` changes tickets.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, computed_field
from pydantic_core import ErrorDetails

from queenright.health.findings import FindingKind, Severity
from queenright.instrumentation.errors import ConflictError, InvalidValueError, NotFoundError, QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.validation_messages import format_fault

TEXT_LIMIT: Final = 1000
"""The maximum number of characters of a cause or a suggested action."""

EVIDENCE_LIMIT: Final = 500
"""The maximum number of characters of evidence."""

_DRAFT_LIMIT: Final = 65_536
_FENCE: Final = re.compile(r"\A```[a-zA-Z]*[ \t]*\r?\n(.*)\n[ \t]*```\Z", re.DOTALL)

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=TEXT_LIMIT)]
LongText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=4000)]
WholeNumber = Annotated[int, Field(ge=0)]


class TicketError(QueenrightError):
    """The base class of errors about tickets."""


class TicketRejectedError(TicketError, InvalidValueError):
    """
    Raised when a draft is not a valid ticket. Nothing is stored or published.

    ``errors`` has a line for each problem, which begins with the field's name, so that a model can correct
    its draft.
    """

    def __init__(self, *errors: str) -> None:
        super().__init__("ticket refused: " + "; ".join(errors))
        self.errors = errors


class TicketStatus(StrEnum):
    """The status of a ticket."""

    OPEN = "open"
    """The ticket waits for triage."""
    DISMISSED = "dismissed"
    """The queen, or a person, decided that no one needs to be notified."""
    INTERVENING = "intervening"
    """An operator has been notified."""
    ACKNOWLEDGED = "acknowledged"
    """An operator is working on it."""
    RESOLVED = "resolved"
    """The condition has been gone for the hold time, or a person resolved the ticket."""
    WORKER_GONE = "worker_gone"
    """The worker ended before the condition was gone."""


OPEN_STATUSES: Final = frozenset({TicketStatus.OPEN, TicketStatus.INTERVENING, TicketStatus.ACKNOWLEDGED})
"""The statuses of open tickets. A worker's session has at most one open ticket."""


class AckChannel(StrEnum):
    """The channel of an acknowledgement."""

    API = "api"
    CLI = "cli"
    CHAT = "chat"
    """A chat with the queen."""
    SLACK = "slack"
    PAGERDUTY = "pagerduty"


class TicketDraft(BaseModel):
    """
    The part of a ticket that a judge writes.

    The optional fields come from the requirement document. They are compared with the worker's facts, and
    never stored.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    severity: Annotated[Severity, Field(strict=False)]
    cause: Text
    judge_reasoning: LongText
    suggested_action: Text
    evidence_snippet: Annotated[str, StringConstraints(max_length=EVIDENCE_LIMIT)]

    agent_id: str | None = None
    session_id: str | None = None
    node_id: str | None = None
    graph_id: str | None = None
    recent_verdicts: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    total_steps_checked: WholeNumber | None = None
    steps_since_last_accept: WholeNumber | None = None
    stall_minutes: Annotated[float, Field(ge=0)] | None = None


class WorkerFacts(BaseModel):
    """The facts about a worker in its ticket, which come from the service's own records."""

    model_config = ConfigDict(frozen=True, strict=True)

    agent_id: str
    session_id: str
    node_id: str
    graph_id: str
    incarnation_id: str
    recent_verdicts: tuple[str, ...]
    total_steps_checked: WholeNumber
    steps_since_last_accept: WholeNumber
    stall_minutes: float | None
    worker_trace_id: str
    worker_span_id: str


class EscalationTicket(WorkerFacts):
    """
    A ticket about a condition of one worker. It is opened once, counts reports, and is closed once. Times are
    in seconds since the epoch.
    """

    ticket_id: str
    severity: Severity
    """The severity. It never falls while the ticket is live."""
    cause: str
    judge_reasoning: str
    suggested_action: str
    evidence_snippet: str

    kind: FindingKind
    """The finding that opened the ticket."""
    fingerprint: str
    related_kinds: tuple[FindingKind, ...] = ()
    """The worker's other findings, in order of appearance."""
    active_kinds: tuple[FindingKind, ...] = ()
    """The current findings, worst first."""
    finding_kind: FindingKind | None = None
    """The worst finding when the ticket last was opened, rose or reopened. The rules set it, not a model."""
    finding_evidence: str = ""
    """The detector's evidence for that finding."""
    finding_since: float | None = None
    trouble_since: float | None = None
    """When the finding that opened the ticket began; null in tickets of earlier versions."""
    spent_usd: float | None = None
    """
    The cost of the run's model calls from ``trouble_since`` to ``updated_at``; null if no price is known.
    """
    spent_tokens: WholeNumber = 0
    spent_unpriced_tokens: WholeNumber = 0
    """The number of these tokens without a known price."""
    worker_excerpt: str = ""
    """The worker's own text at the time, with secrets masked. Quotations by a model may be invented."""
    words_kind: FindingKind | None = None
    """The finding that the cause, reasoning and action describe; null in tickets of earlier versions."""
    words_severity: Severity | None = None
    """The ticket's severity when these texts were written; null in tickets of earlier versions."""
    judge_model: str = ""
    """The model that wrote the cause, reasoning and action; empty if unknown."""
    queen_model: str = ""
    """The model that wrote the analysis; empty if unknown."""
    status: TicketStatus = TicketStatus.OPEN
    occurrences: Annotated[int, Field(ge=1)] = 1
    first_seen: float
    last_seen: float
    updated_at: float
    condition_cleared_at: float | None = None
    """When the condition ended; null while it holds."""
    closed_at: float | None = None
    """When the ticket closed. It does not change after that."""
    closed_reason: str = ""

    triage_decision: Literal["dismiss", "intervene", "bypass"] | None = None
    triage_reason: str = ""
    triaged_at: float | None = None
    triaged_by: str = ""
    untriaged: bool = False
    """Whether the operator was notified because triage did not answer in time."""
    analysis: str = ""
    urgency: str = ""
    notified_severity: Severity | None = None
    """The severity of which people were last notified; null if they were not notified."""
    notified_at: float | None = None
    """When the operator was first notified."""
    bumped_at: float | None = None
    """
    When people were last notified or reminded, or the ticket rose or reopened. Reminders are timed from here.
    """
    reminders: WholeNumber = 0
    """The number of reminders since the severity last rose."""
    requests: WholeNumber = 0
    """The number of notifications that requested a decision or an action."""
    incident_id: str = ""
    """The first ticket of the incident that this ticket joined; empty if it joined none."""
    incident_since: float | None = None
    """When the operator was notified of that first ticket."""
    incident_resolved_at: float | None = None
    """When a person resolved the incident in PagerDuty. Later trouble is a new incident."""
    acknowledged_at: float | None = None
    acknowledged_by: str = ""
    acknowledged_via: AckChannel | None = None
    """The channel of the acknowledgement; null without one, or if an earlier version recorded it."""
    acknowledged_note: str = ""
    """A note as free text."""

    trace_id: str = ""
    span_id: str = ""
    storm_id: str = ""
    """
    The storm or cause that the ticket shares with other tickets, or empty. Once set, it does not change.

    It is the id of a storm, or a cause such as ``provider:anthropic``. A cause may become known after the
    ticket is opened.
    """

    @computed_field  # type: ignore[prop-decorator]  # mypy does not support decorated properties
    @property
    def created_at(self) -> float:
        """``first_seen``, under the name that the requirement document uses."""
        return self.first_seen

    @property
    def shares_cause(self) -> bool:
        """Whether the ticket shares a known cause with other tickets."""
        return ":" in self.storm_id

    @property
    def is_live(self) -> bool:
        """Whether the ticket can still change."""
        return self.closed_at is None

    @property
    def incident(self) -> str:
        """The id of the first ticket of the incident: its own id if it joined none."""
        return self.incident_id or self.ticket_id

    @property
    def is_open(self) -> bool:
        """Whether the ticket waits for triage, for an operator, or for the worker to recover."""
        return self.status in OPEN_STATUSES


class TicketNotFoundError(TicketError, NotFoundError):
    """Raised when no ticket has this id."""

    def __init__(self, ticket_id: str) -> None:
        super().__init__(f"there is no ticket {ticket_id[:64]!r}; list tickets: queenright tickets --all")
        self.ticket_id = ticket_id


class TicketClosedError(TicketError, ConflictError):
    """Raised on an attempt to change a closed ticket."""

    def __init__(self, ticket: EscalationTicket) -> None:
        at = datetime.fromtimestamp(ticket.closed_at or 0.0, UTC)
        super().__init__(
            f"ticket {ticket.ticket_id} was closed ({ticket.status}) at {at:%Y-%m-%d %H:%M:%S} UTC; "
            "if the problem is back, it has a new ticket"
        )
        self.ticket_id = ticket.ticket_id


class TicketStatusError(TicketError, ConflictError):
    """Raised when the status of a ticket does not allow a change."""

    def __init__(self, ticket: EscalationTicket, action: str, remedy: str) -> None:
        super().__init__(f"cannot {action} ticket {ticket.ticket_id}, which is {ticket.status}: {remedy}")
        self.ticket_id = ticket.ticket_id
        self.status = ticket.status


def fingerprint(agent_id: str, session_id: str, node_id: str, kind: FindingKind) -> str:
    """Return the identity of a condition (worker, session, node and cause) as 32 hex digits."""
    parts = json.dumps([agent_id, session_id, node_id, kind.value], separators=(",", ":"))
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


def parse_draft(draft: Any) -> TicketDraft:
    """
    Parse a model's ticket: a JSON object, or its text, with or without a Markdown code fence.

    Raises:
        TicketRejectedError: The data is not such an object, or fields are missing, unknown or out of bounds.
            It lists all problems.
    """
    value = _parse_json(draft) if isinstance(draft, str) else draft
    if not isinstance(value, dict):
        raise TicketRejectedError(
            "(the whole): must be one JSON object with the ticket's fields, "
            f"not {_JSON_TYPE_NAMES[type(value)]}"
        )
    try:
        return TicketDraft.model_validate(value)
    except ValidationError as error:
        raise TicketRejectedError(*map(_describe_problem, error.errors(include_url=False))) from None


def mismatches(draft: TicketDraft, facts: WorkerFacts) -> list[str]:
    """
    Return a line for each field of ``draft`` that contradicts the worker's facts.

    Lower counts are not errors, because the worker may have continued since the judge's check.
    """
    lines = []
    for name in ("agent_id", "session_id", "node_id", "graph_id"):
        value, fact = getattr(draft, name), getattr(facts, name)
        if value is not None and value != fact:
            lines.append(f"{name}: the worker's is {fact!r}, got {_shorten(value)}")
    for name in ("total_steps_checked", "steps_since_last_accept"):
        value, fact = getattr(draft, name), getattr(facts, name)
        if value is not None and value > fact:
            lines.append(f"{name}: the worker's is {fact}, got {value}")
    if draft.stall_minutes is not None and draft.stall_minutes > (facts.stall_minutes or 0.0) + 1.0:
        lines.append(f"stall_minutes: the worker's is {facts.stall_minutes}, got {draft.stall_minutes}")
    return lines


_JSON_TYPE_NAMES: Final = {
    list: "a list",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}

_SERVICE_FIELDS: Final = frozenset(
    {*EscalationTicket.model_fields, *EscalationTicket.model_computed_fields}
) - frozenset(TicketDraft.model_fields)


def _parse_json(text: str) -> Any:
    body = text.strip()
    if match := _FENCE.match(body):
        body = match[1].strip()
    if len(body) > _DRAFT_LIMIT:
        raise TicketRejectedError(
            f"(the whole): must have at most {_DRAFT_LIMIT} characters, got {len(body)}"
        )
    if not body:
        raise TicketRejectedError("(the whole): is empty; write one JSON object with the ticket's fields")
    try:
        return json.loads(body, object_pairs_hook=_refuse_duplicate_keys, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise TicketRejectedError(
            f"(the whole): is not JSON ({error.msg}, line {error.lineno} column {error.colno}); "
            "write one JSON object and nothing around it"
        ) from None
    except (RecursionError, ValueError):
        raise TicketRejectedError("(the whole): is not a JSON object with a ticket's fields") from None


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if duplicates := sorted({key for key in keys if keys.count(key) > 1}):
        raise TicketRejectedError(*(f"{key[:64]}: appears twice" for key in duplicates))
    return dict(pairs)


def _refuse_constant(name: str) -> NoReturn:
    raise TicketRejectedError(f"(the whole): {name} is not a JSON value")


def _describe_problem(error: ErrorDetails) -> str:
    name = ".".join(str(part)[:64] for part in error["loc"])
    if error["type"] == "missing":
        return f"{name}: is required"
    if error["type"] == "extra_forbidden":
        if name in _SERVICE_FIELDS:
            return f"{name}: is set by the service; leave it out"
        return f"{name}: is not a field of a ticket; leave it out"
    if name == "severity":
        return f"severity: must be one of {', '.join(Severity)}, got {_shorten(error['input'])}"
    message = format_fault(error)
    problem = message[:1].lower() + message[1:]
    return f"{name}: {problem}, got {_shorten(error['input'])}"


def _shorten(value: object) -> str:
    return repr(redact(value, 40) if isinstance(value, str) else value)[:80]
