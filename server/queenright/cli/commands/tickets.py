"""Tickets of a running service: list, details, timeline, and an operator's actions on them."""

from __future__ import annotations

import json
import re
import time
from enum import StrEnum
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated

import typer

from queenright.cli.completion_names import CLOSED_STATUSES, complete_tickets
from queenright.cli.options import CURRENT_USER, By, Json, Reason
from queenright.cli.output.printing import print_list, print_result, to_json_values
from queenright.cli.output.text import format_local_time, format_worker_cells, to_single_line
from queenright.cli.service import make_listing_group, with_service
from queenright.cli.short_ids import find_ticket_id, make_id_argument
from queenright.instrumentation.durations import format_duration
from queenright.instrumentation.money import format_spend

if TYPE_CHECKING:
    from queenright.api.interventions import Approval
    from queenright.api.tickets import Ticket
    from queenright.client.synchronous import Queenright

TicketId = Annotated[str, make_id_argument("tickets", autocompletion=complete_tickets)]

_MAX_TICKETS = 1000


class StatusFilter(StrEnum):
    """Status of the tickets to list."""

    # Not imported from `queenright.api`, whose import would delay every command.
    OPEN = "open"
    DISMISSED = "dismissed"
    INTERVENING = "intervening"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"
    WORKER_GONE = "worker_gone"


@with_service
def list_tickets(
    service: Queenright,
    as_json: Json = False,
    all_: Annotated[bool, typer.Option("--all", help="Include closed tickets.")] = False,
    status: Annotated[
        StatusFilter | None, typer.Option(help="Only tickets with this status, open or closed.")
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Do not truncate names.")] = False,
) -> None:
    """List tickets, worst first. Only the newest 1,000 are considered."""
    from queenright.api.terms import Severity, list_values

    rows = list(service.tickets.list(status=status, limit=_MAX_TICKETS))
    if status is None and not all_:
        rows = [t for t in rows if t.status not in CLOSED_STATUSES]
    severities = list_values(Severity)
    rows.sort(key=lambda t: severities.index(t.severity), reverse=True)
    width = max([24, *(len(t.agent_id) for t in rows)] if wide else [24])
    now = time.time()
    lines = (format_ticket_row(t, now, width) for t in rows)
    heading = _format_row(
        "severity", "status", format_worker_cells("agent", "session", width), "problem", "age", "ticket"
    )
    if status is not None:
        empty = f"No tickets with status {status}."
    else:
        empty = "No tickets." if all_ else "No open tickets."
    print_list(rows, lines, empty, as_json=as_json, heading=heading)


tickets = make_listing_group(list_tickets, example="tickets list --all")


@tickets.command("show", epilog="Example: queenright tickets show 01a2c4f8")
@with_service
def show(service: Queenright, ticket: TicketId, as_json: Json = False) -> None:
    """Show one ticket: cause, evidence, judgement, triage, pending approval, notifications."""
    result = service.tickets.get(ticket)
    if as_json:
        typer.echo(json.dumps(to_json_values(result), indent=2))
        return
    approvals = [] if result.closed_at else service.approvals.list(only_open=True)
    pending_approval = next((row for row in approvals if row.ticket_id == result.ticket_id), None)
    for line in format_ticket(result, time.time(), pending_approval):
        typer.echo(to_single_line(line))


def format_ticket_row(ticket: Ticket, now: float, width: int = 24) -> str:
    """Return a ticket as a line of the list, with the worker's name in ``width`` characters."""
    kind = ticket.words_kind or ticket.kind
    age = format_duration(now - ticket.first_seen)
    worker = format_worker_cells(ticket.agent_id, ticket.session_id, width)
    suffix = f"{ticket.ticket_id}{'  silenced' if ticket.silenced else ''}"
    return _format_row(ticket.severity, ticket.status, worker, kind, age, suffix)


def _format_row(severity: str, status: str, worker: str, kind: str, age: str, ticket: str) -> str:
    return f"{severity:<8} {status:<12} {worker} {kind:<18} {age:>7}  {ticket}"


def _describe_silence(ticket: Ticket, now: float) -> str:
    silence = ticket.silenced
    if silence is None:
        return ""
    duration = f"for {format_duration(silence.until - now)} more, until {format_local_time(silence.until)}"
    return f"{duration}, by {silence.by}: {silence.comment} (silence {silence.silence_id})"


def _describe_incident(ticket: Ticket) -> str:
    if not ticket.incident_id:
        return ""
    return f"shares the alert of ticket {ticket.incident_id}, of the same incident"


def _describe_cost(ticket: Ticket) -> str:
    cost = format_spend(ticket.spent_usd, ticket.spent_tokens, ticket.spent_unpriced_tokens)
    return f"{cost} since the problem began" if cost else ""


def _format_receivers(ticket: Ticket) -> str:
    """Return the receivers that were notified since the ticket opened, oldest first."""
    # An alert that several tickets share may have been sent before this one opened.
    times = (
        (row.first_at if row.first_at >= ticket.first_seen else row.at, row)
        for row in ticket.notified
        if row.at >= ticket.first_seen
    )
    rows = sorted(times, key=itemgetter(0))
    return ", ".join(f"{row.receiver} ({row.status}, {format_local_time(at)})" for at, row in rows)


def _describe_duration(ticket: Ticket, now: float) -> str:
    if ticket.closed_at is None:
        return f"for {format_duration(now - ticket.first_seen)}"
    duration = format_duration(ticket.closed_at - ticket.first_seen)
    return f"after {duration}, at {format_local_time(ticket.closed_at)}"


def _clean_analysis(ticket: Ticket) -> str:
    """Return the analysis, or the reason for the triage, without the cause and the suggested action."""
    text = ticket.analysis or ticket.triage_reason
    for removed_text in (ticket.cause.strip().rstrip("."), ticket.suggested_action):
        text = text.replace(removed_text, "") if removed_text else text
    # The numbers in parentheses that followed the cause.
    text = re.sub(r"^\(([^()]+)\)\.", r"\1.", text.strip(" ."))
    return text[:1].upper() + text[1:]


def _describe_approval(approval: Approval | None) -> str:
    if approval is None:
        return ""
    request = f"requested by {approval.asked_by}, until {format_local_time(approval.expires_at)}"
    return f"termination {request}: queenright approvals approve {approval.approval_id}"


def format_ticket(ticket: Ticket, now: float, approval: Approval | None = None) -> list[str]:
    """Return a ticket, with its pending approval, as lines. ``now`` is in seconds since the epoch."""
    kind = (ticket.words_kind or ticket.kind).replace("_", " ")
    summary = f"{ticket.severity}, {kind}, {ticket.status.replace('_', ' ')}"
    rows = [
        ("cause", ticket.cause),
        ("evidence", ticket.finding_evidence),
        ("output", ticket.worker_excerpt),
        ("cost", _describe_cost(ticket)),
        ("judge", ticket.judge_reasoning),
        ("action", "" if ticket.closed_at else ticket.suggested_action),
        ("queen", _clean_analysis(ticket)),
        ("approval", _describe_approval(approval)),
        ("acknowledged", f"{ticket.acknowledged_by} {ticket.acknowledged_note}".strip()),
        ("incident", _describe_incident(ticket)),
        ("silenced", _describe_silence(ticket, now)),
        ("notified", _format_receivers(ticket)),
        ("closed", ticket.closed_reason),
        ("session", ticket.session_id),
        ("ticket", ticket.ticket_id),
    ]
    return [
        f"{ticket.agent_id}: {summary} {_describe_duration(ticket, now)}",
        *(f"  {name:<12} {' '.join(text.split())}" for name, text in rows if text),
    ]


@tickets.command("timeline", epilog="Example: queenright tickets timeline 01a2c4f8")
@with_service
def timeline(service: Queenright, ticket: TicketId, as_json: Json = False) -> None:
    """Show the timeline of a ticket and its worker, oldest first."""
    entries = service.tickets.timeline(find_ticket_id(service, ticket))
    if entries.more and not as_json:
        typer.echo("Only the newest entries are shown.", err=True)
    lines = (f"{format_local_time(entry.at)}  {' '.join(entry.text.split())}" for entry in entries.timeline)
    print_list(entries.timeline, lines, "No entries.", as_json=as_json)


@tickets.command("acknowledge", epilog="Example: queenright tickets acknowledge 01a2c4f8 --by ada")
@with_service
def acknowledge(service: Queenright, ticket: TicketId, by: By = CURRENT_USER, as_json: Json = False) -> None:
    """Acknowledge a ticket: you are working on it. Exit code 1 if it is closed or already acknowledged."""
    result = service.tickets.acknowledge(find_ticket_id(service, ticket), by=by, via="cli")
    print_result(result, f"Acknowledged by {result.acknowledged_by}.", as_json=as_json)


@tickets.command("unacknowledge", epilog="Example: queenright tickets unacknowledge 01a2c4f8 --by ada")
@with_service
def unacknowledge(
    service: Queenright, ticket: TicketId, by: By = CURRENT_USER, as_json: Json = False
) -> None:
    """Withdraw an acknowledgement: reminders start again. Exit code 1 if the ticket is not acknowledged."""
    result = service.tickets.unacknowledge(find_ticket_id(service, ticket), by=by, via="cli")
    text = "No longer acknowledged; reminders start again as if it had been notified now."
    print_result(result, text, as_json=as_json)


@tickets.command("dismiss", epilog='Example: queenright tickets dismiss 01a2c4f8 --reason "a load test"')
@with_service
def dismiss(
    service: Queenright, ticket: TicketId, reason: Reason, by: By = CURRENT_USER, as_json: Json = False
) -> None:
    """
    Dismiss a ticket that is not a problem: no one is notified.

    Refused for high and critical tickets that still hold and for tickets that were notified; those close on
    their own. Dismissing the ticket of a dead worker resolves it, at any severity. For abandoned work and for
    repeated failures, use queenright tickets resolve. Exit code 1 if it is refused.
    """
    if not reason.strip():
        raise typer.BadParameter("--reason is blank; say why the ticket is not a problem")
    result = service.tickets.dismiss(find_ticket_id(service, ticket), reason, by=by)
    print_result(result, f"{result.agent_id}: {result.status}.", as_json=as_json)


@tickets.command("resolve", epilog='Example: queenright tickets resolve 01a2c4f8 --reason "done by hand"')
@with_service
def resolve(
    service: Queenright, ticket: TicketId, reason: Reason, by: By = CURRENT_USER, as_json: Json = False
) -> None:
    """
    Resolve a ticket about a dead worker, abandoned work or repeated failures.

    Every other ticket closes on its own when its worker recovers or ends. Exit code 1 if it is refused.
    """
    if not reason.strip():
        raise typer.BadParameter("--reason is blank; say how the problem was resolved")
    result = service.tickets.resolve(find_ticket_id(service, ticket), reason, by=by)
    print_result(result, f"{result.agent_id}: resolved.", as_json=as_json)
