"""Silences of the service's Alertmanagers: list, add for a ticket, expire."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from queenright.cli.commands.tickets import TicketId
from queenright.cli.options import CURRENT_USER, By, Json, parse_duration
from queenright.cli.output.printing import print_result, to_json_values
from queenright.cli.output.text import format_local_time, to_single_line
from queenright.cli.service import make_listing_group, with_service
from queenright.cli.short_ids import make_id_argument
from queenright.instrumentation.durations import format_duration

if TYPE_CHECKING:
    from queenright.api.alerts import Silence
    from queenright.client.synchronous import Queenright


def _parse_duration(text: str) -> float:
    seconds = parse_duration(text, "30m, 2h or 1d")
    if not 60 <= seconds <= 30 * 86_400:
        raise typer.BadParameter(f"{text!r} is not between 1m and 30d; choose a time in between")
    return seconds


@with_service
def list_silences(service: Queenright, as_json: Json = False) -> None:
    """
    List active and pending silences, soonest expiry first.

    Exit code 1 if an Alertmanager does not answer.
    """
    snapshot = service.silences.snapshot()
    if as_json:
        typer.echo(json.dumps(to_json_values(snapshot), indent=2))
    else:
        for silence in snapshot.silences:
            summary = (
                f"{silence.silence_id}  {_format_time_left(silence):<18} {silence.by:<16} {silence.comment}"
            )
            typer.echo(to_single_line(summary))
            typer.echo(to_single_line(f"  {', '.join(silence.matchers)}"))
            typer.echo(to_single_line(f"  tickets: {', '.join(silence.tickets) or 'none open'}"))
        if not snapshot.peers:
            typer.echo(
                "No Alertmanager is configured, so there are no silences; set alerting.alertmanager_urls."
            )
        elif not (snapshot.silences or snapshot.unknown):
            typer.echo("No silences.")
        if snapshot.unknown:
            typer.echo(f"Unknown, because an Alertmanager did not answer: {snapshot.unknown}", err=True)
    raise typer.Exit(1 if snapshot.unknown else 0)


silences = make_listing_group(
    list_silences,
    example="silences list",
)


@silences.command("add", epilog="Example: queenright silences add 01a2c4f8 --for 2h --comment maintenance")
@with_service
def add(
    service: Queenright,
    ticket: TicketId,
    duration: Annotated[
        float, typer.Option("--for", parser=_parse_duration, metavar="TIME", help="Duration: 30m, 2h or 1d.")
    ],
    comment: Annotated[
        str | None,
        typer.Option(help="Comment, shown in Alertmanager. Default: your name and this command."),
    ] = None,
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """
    Silence a ticket: no notifications about it or later tickets with the same cause on that agent.

    This holds at any severity, and reminders stop too. A ticket that is already silenced for longer is left
    as it is. To say that you are working on a ticket, acknowledge it instead.
    """
    if comment is not None and not comment.strip():
        raise typer.BadParameter("the comment is blank; give a text, or leave --comment out")
    target = service.tickets.get(ticket)
    if (current := target.silenced) is not None and current.until >= time.time() + duration:
        until = f"until {format_local_time(current.until)}, by {current.by}: {current.comment}"
        text = f"Nothing added: the ticket is already silenced {until} (silence {current.silence_id})."
        print_result(current, text, as_json=as_json)
        return
    silence = service.silences.add(
        target.ticket_id,
        seconds=duration,
        comment=comment or f"added by {by} with `queenright silences add`",
        by=by,
    )
    if current is not None and not as_json:
        typer.echo(
            f"Silence {current.silence_id} also stays; "
            f"it ends earlier, at {format_local_time(current.until)}."
        )
    text = f"Silence {silence.silence_id} added. To end it: queenright silences expire {silence.silence_id}"
    print_result(silence, text, as_json=as_json)


@silences.command("expire", epilog="Example: queenright silences expire 4a0a2d0c")
@with_service
def expire(
    service: Queenright,
    silence: Annotated[str, make_id_argument("silences")],
) -> None:
    """End a silence now. Exit code 1 if no Alertmanager has it."""
    service.silences.remove(silence)
    typer.echo(f"Silence {silence} expired.")


def _format_time_left(silence: Silence) -> str:
    if silence.state == "pending":
        return "pending"
    return f"{format_duration(max(0.0, silence.ends_at - time.time()))} left"
