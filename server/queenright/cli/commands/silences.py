"""Silences of a running service's Alertmanagers: the list, a new one for a ticket, and the end of one."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from queenright.cli.service import (
    LOCAL,
    WHO,
    By,
    Json,
    TokenFile,
    Url,
    connect,
    named,
    on_one_line,
    refuse_options,
    tell,
    values,
)
from queenright.cli.ids import find_ticket_id
from queenright.cli.commands.tickets import Ticket
from queenright.instrumentation.durations import format_duration

if TYPE_CHECKING:
    from queenright.api.alerts import Silence

_UNITS = {"m": 60, "h": 3600, "d": 86_400}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([mhd])")

silences = typer.Typer(help="Silences at Alertmanager: of which tickets nobody hears, and until when.")


def _span(text: str) -> float:
    """Return a time such as 30m, 2h or 1d in seconds."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no time; say it like 30m, 2h or 1d")
    seconds = float(found[1]) * _UNITS[found[2]]
    if not 60 <= seconds <= 30 * 86_400:
        raise typer.BadParameter(f"{text!r} is not between 1m and 30d")
    return seconds


For = Annotated[float, typer.Option("--for", parser=_span, metavar="TIME", help="Like 30m, 2h or 1d.")]
Comment = Annotated[str, typer.Option(help="Why; whoever reads Alertmanager sees it.")]
Which = Annotated[str, typer.Argument(help="Its id, as `queenright silences` shows it.")]


@silences.callback(invoke_without_command=True, epilog="Example: queenright silences --json")
def silences_(
    context: typer.Context, as_json: Json = False, url: Url = LOCAL, token_file: TokenFile = None
) -> None:
    """List silences that hold or will, the first to end first. Exit code 1 if a peer could not be asked."""
    if context.invoked_subcommand is None:
        list_silences(as_json, url, token_file)
    else:
        refuse_options(context)


@silences.command("list", epilog="Example: queenright silences list")
def list_silences(as_json: Json = False, url: Url = LOCAL, token_file: TokenFile = None) -> None:
    """List silences that hold or will, the first to end first. Exit code 1 if a peer could not be asked."""
    with connect(url, token_file) as service:
        found = service.silences.known()
    if as_json:
        typer.echo(json.dumps(values(found), indent=2))
    else:
        for one in found.silences:
            typer.echo(on_one_line(f"{one.silence_id}  {_left(one):<18} {one.by:<16} {one.comment}"))
            typer.echo(on_one_line(f"  {', '.join(one.matchers)}"))
            typer.echo(on_one_line(f"  silences {', '.join(one.tickets) or 'no open ticket'}"))
        if not (found.silences or found.unknown):
            typer.echo("No silences.")
        if found.unknown:
            typer.echo(f"Not known, for want of an answer: {found.unknown}", err=True)
    raise typer.Exit(1 if found.unknown else 0)


@silences.command(
    "add", epilog='Example: queenright silences add 01J... --for 2h --comment "known, ada is on it"'
)
def add(
    ticket: Ticket,
    span: For,
    comment: Comment,
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """
    Let nobody hear of a ticket for a while, nor of its agent for the same cause, however bad it gets.

    It is not brought up again meanwhile. To say that you have it in hand, acknowledge it instead.
    """
    if not (ticket.strip() and comment.strip()):
        raise typer.BadParameter("name the ticket, and say with --comment why")
    with connect(url, token_file) as service:
        done = service.silences.add(find_ticket_id(service, ticket), seconds=span, comment=comment, by=by)
    words = f"Silenced by {done.silence_id}. To end it: queenright silences expire {done.silence_id}"
    tell(done, words, as_json=as_json)


@silences.command("expire", epilog="Example: queenright silences expire 4a0a2d0c-5d0c-4d4f-9a1c-6d2b5a7a0c11")
def expire(silence: Which, url: Url = LOCAL, token_file: TokenFile = None) -> None:
    """Let a silence end now. Exit code 1 if no Alertmanager knows it."""
    with connect(url, token_file) as service:
        service.silences.remove(named(silence, "silence's id"))
    typer.echo("It has ended.")


def _left(one: Silence) -> str:
    if one.state == "pending":
        return "has not begun"
    left = max(0.0, one.ends_at - time.time())
    return f"{format_duration(left)} left"
