"""Tickets of a running service: the list, and what a person says about one."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from queenright.cli.acting import LOCAL, WHO, By, Json, Reason, Url, cut, refuse_options

All = Annotated[bool, typer.Option("--all", help="Closed tickets too.")]
Wide = Annotated[bool, typer.Option("--wide", help="No name is cut.")]
Ticket = Annotated[str, typer.Argument(help="Its id, as `queenright tickets` shows it.")]

_WORST_FIRST = ["critical", "high", "medium", "low"]
_CLOSED = ("resolved", "worker_gone", "dismissed")

tickets = typer.Typer(help="Tickets about workers, worst first, and what is said about them.")


@tickets.callback(invoke_without_command=True, epilog="Example: queenright tickets --json")
def tickets_(
    context: typer.Context, as_json: Json = False, all_: All = False, wide: Wide = False, url: Url = LOCAL
) -> None:
    """List tickets of a running service, worst first: those of the newest 1,000."""
    if context.invoked_subcommand is None:
        list_tickets(as_json, all_, wide, url)
    else:
        refuse_options(context.invoked_subcommand, as_json or all_ or wide or url != LOCAL)


@tickets.command("list", epilog="Example: queenright tickets list --all")
def list_tickets(as_json: Json = False, all_: All = False, wide: Wide = False, url: Url = LOCAL) -> None:
    """List tickets, worst first: those of the newest 1,000."""
    from queenright.cli.ask import ask

    found = ask(url, "/api/tickets?limit=1000")["tickets"]
    if not all_:
        found = [t for t in found if t["status"] not in _CLOSED]
    found.sort(key=lambda t: _WORST_FIRST.index(t["severity"]))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    widest = max((len(t["worker_agent_id"]) for t in found), default=0) if wide else 0
    for t in found:
        what = f"{cut(t['worker_agent_id'], max(24, widest))} {t['kind']:<18}"
        typer.echo(f"{t['severity']:<8} {t['status']:<12} {what} {t['age']:>7}  {t['ticket_id']}")
    if not found:
        typer.echo("No tickets." if all_ else "No open tickets.")


@tickets.command("acknowledge", epilog="Example: queenright tickets acknowledge 01J... --by ada")
def acknowledge(ticket: Ticket, by: By = WHO, as_json: Json = False, url: Url = LOCAL) -> None:
    """Say that a person has it in hand. Exit code 1 if it is closed, or somebody has it."""
    done = _say(url, ticket, "acknowledge", {"by": by, "via": "cli"})
    typer.echo(json.dumps(done, indent=2) if as_json else f"{done['acknowledged_by']} has it in hand.")


@tickets.command("unacknowledge", epilog="Example: queenright tickets unacknowledge 01J... --by ada")
def unacknowledge(ticket: Ticket, by: By = WHO, as_json: Json = False, url: Url = LOCAL) -> None:
    """Say that nobody has it in hand any more: it is brought up again. Exit code 1 if nobody had it."""
    done = _say(url, ticket, "unacknowledge", {"by": by, "via": "cli"})
    words = "Nobody has it in hand any more; it is brought up again as if it had been told just now."
    typer.echo(json.dumps(done, indent=2) if as_json else words)


@tickets.command("resolve", epilog='Example: queenright tickets resolve 01J... --reason "written by hand"')
def resolve(ticket: Ticket, reason: Reason, by: By = WHO, as_json: Json = False, url: Url = LOCAL) -> None:
    """
    Close a ticket about a worker that could not be brought back, and that a person has seen to.

    Every other ticket closes by itself, when its worker recovers or ends. Exit code 1 if it is refused.
    """
    if not reason.strip():
        raise typer.BadParameter("say with --reason how it was settled")
    done = _say(url, ticket, "resolve", {"reason": reason, "by": by})
    typer.echo(json.dumps(done, indent=2) if as_json else f"{done['worker_agent_id']}: resolved.")


def _say(url: str, ticket: str, what: str, body: dict[str, Any]) -> dict[str, Any]:
    from queenright.cli.ask import ask, segment

    if not ticket.strip():
        raise typer.BadParameter("the ticket's id is empty")
    return ask(url, f"/api/tickets/{segment(ticket)}/{what}", method="POST", body=body)
