"""Silences of a running service's Alertmanagers: the list, a new one for a ticket, and the end of one."""

from __future__ import annotations

import json
import re
import time
from typing import Annotated

import typer

from queenright.cli.acting import LOCAL, WHO, By, Json, Url, refuse_options
from queenright.cli.tickets import Ticket

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
def silences_(context: typer.Context, as_json: Json = False, url: Url = LOCAL) -> None:
    """List silences that hold or will, the first to end first. Exit code 1 if a peer could not be asked."""
    if context.invoked_subcommand is None:
        list_silences(as_json, url)
    else:
        refuse_options(context.invoked_subcommand, as_json or url != LOCAL)


@silences.command("list", epilog="Example: queenright silences list")
def list_silences(as_json: Json = False, url: Url = LOCAL) -> None:
    """List silences that hold or will, the first to end first. Exit code 1 if a peer could not be asked."""
    from queenright.cli.ask import ask

    found = ask(url, "/api/silences")
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        for one in found["silences"]:
            typer.echo(f"{one['silence_id']}  {_left(one):<18} {one['by']:<16} {one['comment']}".rstrip())
            typer.echo(f"  {', '.join(one['matchers'])}")
            typer.echo(f"  silences {', '.join(one['tickets']) or 'no open ticket'}")
        if not (found["silences"] or found["unknown"]):
            typer.echo("No silences.")
        if found["unknown"]:
            typer.echo(f"Not known, for want of an answer: {found['unknown']}", err=True)
    raise typer.Exit(1 if found["unknown"] else 0)


@silences.command(
    "add", epilog='Example: queenright silences add 01J... --for 2h --comment "known, ada is on it"'
)
def add(
    ticket: Ticket, span: For, comment: Comment, by: By = WHO, as_json: Json = False, url: Url = LOCAL
) -> None:
    """
    Let nobody hear of a ticket for a while, nor of its agent for the same cause, however bad it gets.

    It is not brought up again meanwhile. To say that you have it in hand, acknowledge it instead.
    """
    from queenright.cli.ask import ask

    if not (ticket.strip() and comment.strip()):
        raise typer.BadParameter("name the ticket, and say with --comment why")
    body = {"ticket_id": ticket, "seconds": span, "comment": comment, "by": by}
    done = ask(url, "/api/silences", method="POST", body=body)
    words = f"Silenced by {done['silence_id']}. To end it: queenright silences expire {done['silence_id']}"
    typer.echo(json.dumps(done, indent=2) if as_json else words)


@silences.command("expire", epilog="Example: queenright silences expire 4a0a2d0c-5d0c-4d4f-9a1c-6d2b5a7a0c11")
def expire(silence: Which, url: Url = LOCAL) -> None:
    """Let a silence end now. Exit code 1 if no Alertmanager knows it."""
    from queenright.cli.ask import ask, segment

    if not silence.strip():
        raise typer.BadParameter("the silence's id is empty")
    ask(url, f"/api/silences/{segment(silence)}", method="DELETE")
    typer.echo("It has ended.")


def _left(one: dict[str, object]) -> str:
    if one["state"] == "pending":
        return "has not begun"
    left = max(0.0, float(str(one["ends_at"])) - time.time())
    return f"{left / 60:.0f} min left" if left < 5400 else f"{left / 3600:.1f} h left"
