"""Tickets of a running service: the list, one of them, and what a person says about one."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from queenright.cli import completion_names as names
from queenright.cli.service import (
    LOCAL,
    WHO,
    By,
    Json,
    Reason,
    TokenFile,
    Url,
    clock,
    connect,
    cut,
    on_one_line,
    refuse_options,
    tell,
    tell_all,
    values,
)
from queenright.cli.ids import find_ticket, find_ticket_id
from queenright.instrumentation.durations import format_duration
from queenright.instrumentation.money import spent

if TYPE_CHECKING:
    from queenright.api.tickets import Ticket as Found

All = Annotated[bool, typer.Option("--all", help="Closed tickets too.")]
Wide = Annotated[bool, typer.Option("--wide", help="No name is cut.")]
Ticket = Annotated[
    str,
    typer.Argument(
        autocompletion=names.tickets,
        help="Its id, as `queenright tickets` shows it, or how only this one begins.",
    ),
]

_WORST_FIRST = ["critical", "high", "medium", "low"]
_CLOSED = ("resolved", "worker_gone", "dismissed")
_NEWEST = 1000

tickets = typer.Typer(help="Tickets about workers, worst first, and what is said about them.")


@tickets.callback(invoke_without_command=True, epilog="Example: queenright tickets --json")
def tickets_(
    context: typer.Context,
    as_json: Json = False,
    all_: All = False,
    wide: Wide = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """List tickets of a running service, worst first: those of the newest 1,000."""
    if context.invoked_subcommand is None:
        list_tickets(as_json, all_, wide, url, token_file)
    else:
        refuse_options(context)


@tickets.command("list", epilog="Example: queenright tickets list --all")
def list_tickets(
    as_json: Json = False,
    all_: All = False,
    wide: Wide = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """List tickets, worst first: those of the newest 1,000."""
    with connect(url, token_file) as service:
        found = list(service.tickets.list(limit=_NEWEST))
    if not all_:
        found = [t for t in found if t.status not in _CLOSED]
    found.sort(key=lambda t: _WORST_FIRST.index(t.severity))
    widest = max((len(t.worker_agent_id) for t in found), default=0) if wide else 0
    lines = (ticket_row(t, max(24, widest)) for t in found)
    tell_all(found, lines, "No tickets." if all_ else "No open tickets.", as_json=as_json)


@tickets.command("show", epilog="Example: queenright tickets show 01J...")
def show(ticket: Ticket, as_json: Json = False, url: Url = LOCAL, token_file: TokenFile = None) -> None:
    """Show one ticket: what is wrong, what the judge and the queen say, and who has it in hand."""
    with connect(url, token_file) as service:
        found = find_ticket(service, ticket)
    if as_json:
        typer.echo(json.dumps(values(found), indent=2))
        return
    for line in ticket_lines(found, time.time()):
        typer.echo(on_one_line(line))


def ticket_row(ticket: Found, width: int = 24) -> str:
    """Return a ticket as a line of the list; its worker's name is cut to ``width`` characters."""
    return (
        f"{ticket.severity:<8} {ticket.status:<12} {cut(ticket.worker_agent_id, width)} {ticket.kind:<18} "
        f"{ticket.age:>7}  {ticket.ticket_id}{'  silenced' if ticket.silenced else ''}"
    )


def _silenced(ticket: Found, now: float) -> str:
    """Return by whom, for how long and why nobody hears of a ticket; nothing if it is not silenced."""
    silence = ticket.silenced
    if silence is None:
        return ""
    left = f"for {format_duration(silence.until - now)} more, until {clock(silence.until)}"
    return f"{left}, by {silence.by}: {silence.comment} (silence {silence.silence_id})"


def _incident(ticket: Found) -> str:
    """Return whose alert a ticket joined; nothing if it has its own."""
    if not ticket.incident_id:
        return ""
    return f"joined the alert of ticket {ticket.incident_id}; no notification was sent when this one opened"


def _spent(ticket: Found) -> str:
    """Return what the run has spent since its trouble began; nothing if it called no model."""
    cost = spent(ticket.spent_usd, ticket.spent_tokens, ticket.spent_unpriced_tokens)
    return f"{cost} since the trouble began" if cost else ""


def ticket_lines(ticket: Found, now: float) -> list[str]:
    """Return a ticket in lines. ``now`` is in seconds since the epoch."""
    what = f"{ticket.severity}, {ticket.kind.replace('_', ' ')}, {ticket.status.replace('_', ' ')}"
    in_hand = f"{ticket.acknowledged_by} {ticket.acknowledged_note}".strip()
    rows = [
        ("cause", ticket.cause),
        ("evidence", ticket.finding_evidence),
        ("spent", _spent(ticket)),
        ("judge", ticket.judge_reasoning),
        ("advice", "" if ticket.closed_at else ticket.suggested_action),
        ("queen", ticket.analysis or ticket.triage_reason),
        ("in hand", in_hand),
        ("incident", _incident(ticket)),
        ("silenced", _silenced(ticket, now)),
        ("told", ", ".join(f"{one.receiver} ({one.status})" for one in ticket.told)),
        ("closed", ticket.closed_reason),
        ("session", ticket.worker_session_id),
        ("ticket", ticket.ticket_id),
    ]
    return [
        f"{ticket.worker_agent_id}: {what}, for {ticket.age}",
        *(f"  {name:<9} {' '.join(text.split())}" for name, text in rows if text),
    ]


@tickets.command("timeline", epilog="Example: queenright tickets timeline 01J...")
def timeline(ticket: Ticket, as_json: Json = False, url: Url = LOCAL, token_file: TokenFile = None) -> None:
    """Show what happened to a ticket and to its worker because of it, oldest first."""
    with connect(url, token_file) as service:
        found = service.tickets.timeline(find_ticket_id(service, ticket))
    if found.more and not as_json:
        typer.echo("Only the newest is shown.", err=True)
    lines = (f"{clock(one.at)}  {' '.join(one.text.split())}" for one in found.timeline)
    tell_all(found.timeline, lines, "Nothing.", as_json=as_json)


@tickets.command("acknowledge", epilog="Example: queenright tickets acknowledge 01J... --by ada")
def acknowledge(
    ticket: Ticket, by: By = WHO, as_json: Json = False, url: Url = LOCAL, token_file: TokenFile = None
) -> None:
    """Say that a person has it in hand. Exit code 1 if it is closed, or somebody has it."""
    with connect(url, token_file) as service:
        done = service.tickets.acknowledge(find_ticket_id(service, ticket), by=by, via="cli")
    tell(done, f"{done.acknowledged_by} has it in hand.", as_json=as_json)


@tickets.command("unacknowledge", epilog="Example: queenright tickets unacknowledge 01J... --by ada")
def unacknowledge(
    ticket: Ticket, by: By = WHO, as_json: Json = False, url: Url = LOCAL, token_file: TokenFile = None
) -> None:
    """Say that nobody has it in hand any more: it is brought up again. Exit code 1 if nobody had it."""
    with connect(url, token_file) as service:
        done = service.tickets.unacknowledge(find_ticket_id(service, ticket), by=by, via="cli")
    words = "Nobody has it in hand any more; it is brought up again as if it had been told just now."
    tell(done, words, as_json=as_json)


@tickets.command("dismiss", epilog='Example: queenright tickets dismiss 01J... --reason "a test of ours"')
def dismiss(
    ticket: Ticket,
    reason: Reason,
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """
    Say that it is nothing: nobody is told.

    Not of what is high or critical and still holds, nor of what people were told of: that closes by itself.
    A ticket of a dead worker is resolved by it, however bad it was; work that was given up, or runs that
    failed in a row, take queenright tickets resolve. Exit code 1 if it is refused.
    """
    if not reason.strip():
        raise typer.BadParameter("say with --reason why it is nothing")
    with connect(url, token_file) as service:
        done = service.tickets.dismiss(find_ticket_id(service, ticket), reason, by=by)
    tell(done, f"{done.worker_agent_id}: {done.status}.", as_json=as_json)


@tickets.command("resolve", epilog='Example: queenright tickets resolve 01J... --reason "written by hand"')
def resolve(
    ticket: Ticket,
    reason: Reason,
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """
    Close a ticket about a dead worker, work that was given up or runs that failed: a person has seen to it.

    Every other ticket closes by itself, when its worker recovers or ends. Exit code 1 if it is refused.
    """
    if not reason.strip():
        raise typer.BadParameter("say with --reason how it was settled")
    with connect(url, token_file) as service:
        done = service.tickets.resolve(find_ticket_id(service, ticket), reason, by=by)
    tell(done, f"{done.worker_agent_id}: resolved.", as_json=as_json)
