"""Labels and annotations of the alert for a ticket. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urlsplit

from queenright.alerting import notification_text
from queenright.alerting.model_text import neutralize_markup
from queenright.alerting.settings import AlertingSettings
from queenright.health.findings import FindingKind, Severity
from queenright.health.tickets.ticket import EscalationTicket, TicketStatus
from queenright.health.tickets.ticket_lifecycle import RUN_COMPLETED
from queenright.instrumentation.durations import format_duration
from queenright.instrumentation.names import ALERT_INTERVENTION, ALERT_LABEL_TICKET_ID, SOURCE_QUEEN
from queenright.instrumentation.redaction import redact

LABEL_STORM: Final = "storm"
"""Label with the storm's id, if many workers got worse at the same time as the ticket's worker."""

LABEL_REMINDER: Final = "reminder"
"""Label of a reminder. It cycles through ``_TURNS`` so that Alertmanager sends a new notification."""
REMINDERS: Final = "reminders"
"""Annotation with the number of reminders."""

SESSIONS: Final = "sessions"
"""Annotation with the number of consecutive sessions of the agent that the alert covers; unset for one."""

_TURNS: Final = ("1", "2", "3")

_TEXT_LIMIT: Final = 2000

_SEVERITY: Final[Mapping[Severity, str]] = {
    Severity.CRITICAL: "critical",
    Severity.HIGH: "critical",
    Severity.MEDIUM: "warning",
    Severity.LOW: "info",
}

_KIND_PHRASES: Final[Mapping[FindingKind, str]] = {
    FindingKind.CONTEXT_EXHAUSTED: "has exhausted its model's context",
    FindingKind.PROVIDER_FAILURE: "is affected by failures of its model provider",
    FindingKind.CIRCUIT_BREAKER_OPEN: "is blocked by an open circuit breaker",
    FindingKind.RESOURCE_LIMIT: "has used up a resource",
    FindingKind.SPENDING: "has reached or nearly reached a spending limit",
    FindingKind.RECOVERY_FAILED: "could not be recovered",
    FindingKind.RUNS_FAILED: "fails run after run",
    FindingKind.DOOM_LOOP: "is in a loop",
    FindingKind.ERROR_STREAK: "has a streak of failing tool calls",
    FindingKind.RETRY_STORM: "retries without an accepted step",
    FindingKind.STALL: "has stalled",
    FindingKind.ZERO_PROGRESS: "makes no progress",
    FindingKind.NO_TOOL_CALLS: "has stopped using its tools",
    FindingKind.CHECKPOINT_STALE: "has not saved a checkpoint for too long",
    FindingKind.HEARTBEAT_MISSING: "sends no heartbeats",
    FindingKind.TOOL_TIMEOUT: "waits for a tool beyond its timeout",
    FindingKind.MCP_SERVER_MISSING: "works without one of its MCP servers",
    FindingKind.NO_TOKENS: "uses no tokens although it is active",
    FindingKind.ERROR_RATE: "fails too often",
    FindingKind.OUTPUT_UNCHANGED: "keeps reporting the same output",
    FindingKind.TOKEN_SPIKE: "uses far more tokens than before",
    FindingKind.GRINDING: "keeps working without changing anything",
    FindingKind.TOKEN_BURN: "uses far more tokens than usual without changing anything",
}


_ORDINALS: Final = ("", "First", "Second", "Third", "Fourth", "Fifth", "Sixth", "Seventh", "Eighth", "Ninth")


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """A decision or action that is requested from a person."""

    title: str
    """One sentence with the request and its deadline, for the alert's summary."""
    text: str
    """The full request, with the command to run."""
    since: float
    """Seconds since the epoch."""


def alert_severity(severity: Severity) -> str:
    """Return the value of the label ``severity``, by which Alertmanager routes."""
    return _SEVERITY[severity]


def build_labels(ticket: EscalationTicket, settings: AlertingSettings) -> dict[str, str]:
    """Return the labels of a new alert for a ticket."""
    labels = {
        "alertname": ALERT_INTERVENTION,
        "agent": ticket.agent_id,
        "cause": ticket.kind.value,
        "severity": alert_severity(ticket.severity),
        "ticket_severity": ticket.severity.value,
        "source": SOURCE_QUEEN,
        "cluster": settings.cluster,
        # Two sessions of one agent with the same cause are two alerts, which Alertmanager groups into one
        # message.
        ALERT_LABEL_TICKET_ID: ticket.ticket_id,
    }
    if ticket.storm_id:
        # Alertmanager groups a storm into one message by this label.
        labels[LABEL_STORM] = ticket.storm_id
    return labels


def reminder_labels(labels: Mapping[str, str], ticket: EscalationTicket) -> dict[str, str]:
    """
    Return the labels of a reminder. The reminder replaces the alert that has ``labels``.

    Alertmanager notifies again when a group contains a new alert, so one label changes. No route matches that
    label and no grouping uses it, so the group and its incident stay the same.
    """
    turn = labels.get(LABEL_REMINDER)
    following = _TURNS[(_TURNS.index(turn) + 1) % len(_TURNS)] if turn in _TURNS else _TURNS[0]
    return {**labels, "ticket_severity": ticket.severity.value, LABEL_REMINDER: following}


def build_annotations(
    ticket: EscalationTicket,
    settings: AlertingSettings,
    *,
    requests: Sequence[OperatorRequest] = (),
    sessions: int = 1,
) -> dict[str, str]:
    """
    Return the annotations for the current state of a ticket, without empty ones.

    Args:
        requests: Decisions or actions that the notification requests from people.
        sessions: Number of consecutive sessions that the alert covers.
    """
    own_urls = _own_base_urls(settings)
    annotations = {
        "summary": _build_summary(ticket, requests)
        + (f" {sessions} sessions, one after the other." if sessions > 1 else ""),
        SESSIONS: str(sessions) if sessions > 1 else "",
        "description": notification_text.describe_finding(ticket),
        "evidence": notification_text.quote_evidence(ticket),
        "analysis": notification_text.quote_models(ticket, own_urls=own_urls),
        "suggested_action": redact(
            "\n".join(
                [
                    *(request.text for request in requests),
                    notification_text.suggest_action(ticket, own_urls=own_urls),
                ]
            ),
            _TEXT_LIMIT,
        ),
        "ended": _describe_end(ticket),
        "ticket_id": ticket.ticket_id,
        "fingerprint": ticket.fingerprint,
        "session_id": ticket.session_id,
        "graph_id": ticket.graph_id,
        "dashboard_url": _fill_link(settings.dashboard_url, ticket),
        "console_url": f"{settings.console_url.rstrip('/')}/tickets/{quote(ticket.ticket_id, safe='')}",
        "runbook_url": f"{settings.runbooks}/{ALERT_INTERVENTION}",
        "trace_url": trace_link(ticket, settings),
        REMINDERS: str(count_reminders(ticket) or ""),
    }
    return {name: text for name, text in annotations.items() if text}


def count_reminders(ticket: EscalationTicket) -> int:
    """Return the number of reminders and requests since the ticket's severity last rose."""
    return ticket.reminders + ticket.requests


def _build_summary(ticket: EscalationTicket, requests: Sequence[OperatorRequest]) -> str:
    # The summary states the current severity; the label keeps that of the first notification.
    agent = redact(neutralize_markup(ticket.agent_id), 100)
    is_about_runs = ticket.kind is FindingKind.RUNS_FAILED
    description = _KIND_PHRASES[ticket.kind if is_about_runs else ticket.words_kind or ticket.kind]
    if ticket.status is TicketStatus.WORKER_GONE:
        # Alertmanager reports the alert as resolved, which must not look like a recovery.
        ending = "has ended without recovering"
        if ticket.closed_reason == RUN_COMPLETED:
            ending = "has completed its run; the page was"
        elif ticket.condition_cleared_at is not None:
            ending = "made progress again and has ended; the page was"
        return f"{agent} {ending}: it {description} ({ticket.severity.value})."
    request_titles = "".join(f" {request.title}" for request in requests if ticket.is_live)
    others = [kind for kind in ticket.active_kinds if kind is not ticket.kind]
    # A session with failed runs has one ticket, which also covers new problems of later runs.
    addition = f", and now it {_KIND_PHRASES[others[0]]}" if others and is_about_runs else ""
    reminder = _describe_reminder(ticket)
    return f"{agent} {description}{addition} ({ticket.severity.value}).{request_titles}{reminder}"


def _describe_reminder(ticket: EscalationTicket) -> str:
    """Return a sentence with the reminder's number and how long the ticket has been unacknowledged."""
    if not ticket.reminders or ticket.status is not TicketStatus.INTERVENING:
        return ""
    ordinal = _ORDINALS[ticket.reminders] if ticket.reminders < len(_ORDINALS) else f"{ticket.reminders}th"
    started_at = ticket.notified_at if ticket.incident_since is None else ticket.incident_since
    elapsed_seconds = (ticket.bumped_at or 0.0) - (started_at or 0.0)
    return f" {ordinal} reminder, unacknowledged for {format_duration(elapsed_seconds)}."


def _describe_end(ticket: EscalationTicket) -> str:
    """Return a sentence that says how long the ticket lasted and why it ended; "" while it is open."""
    if ticket.closed_at is None:
        return ""
    reason = f": {ticket.closed_reason.strip().removesuffix('.')}" if ticket.closed_reason else ""
    acknowledgement = f" {ticket.acknowledged_by} had acknowledged it." if ticket.acknowledged_by else ""
    return redact(
        neutralize_markup(
            f"It lasted {format_duration(ticket.closed_at - ticket.first_seen)}{reason}.{acknowledgement}"
        ),
        400,
    )


def _own_base_urls(settings: AlertingSettings) -> tuple[str, ...]:
    """Return the base URLs that links in a model's text may point to."""
    urls = (settings.console_url, settings.dashboard_url, settings.trace_url, settings.runbooks)
    return tuple({f"{urlsplit(url).scheme}://{urlsplit(url).netloc}" for url in urls if url})


def trace_link(ticket: EscalationTicket, settings: AlertingSettings) -> str:
    """Return the link to a ticket's trace; "" if no template is set, or the ticket lacks a value for it."""
    return _fill_link(settings.trace_url, ticket)


def _fill_link(template: str, ticket: EscalationTicket) -> str:
    """Fill a link template; return "" if the ticket lacks a value that the template needs."""
    values = {
        "agent": ticket.agent_id,
        "ticket_id": ticket.ticket_id,
        "session_id": ticket.session_id,
        "trace_id": ticket.trace_id or ticket.worker_trace_id,
    }
    if any(f"{{{name}}}" in template and not value for name, value in values.items()):
        return ""
    return template.format(**{name: quote(value, safe="") for name, value in values.items()})
