"""`queenright chat`: a chat with the queen about a ticket."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from queenright.cli.commands.tickets import TicketId
from queenright.cli.options import CURRENT_USER, By, Json
from queenright.cli.output.printing import json_values, print_result
from queenright.cli.output.text import local_time, strip_control
from queenright.cli.service import example, with_service

if TYPE_CHECKING:
    from queenright.api.tickets import ChatMessage, Ticket
    from queenright.client.synchronous import Queenright

_HISTORY: Final = 20


@example('chat 01J... --say "what was tried?"')
@with_service
def chat(
    service: Queenright,
    ticket: TicketId,
    say: Annotated[
        str | None, typer.Option("--say", metavar="TEXT", help="Ask one question, print the answer, exit.")
    ] = None,
    act: Annotated[
        bool,
        typer.Option(
            "--act",
            help="Treat the text of --say as an order in free form: the queen may nudge, request a "
            "termination, or acknowledge; for an admin also restart a loaded agent, or change a file of it "
            "that the text names.",
        ),
    ] = False,
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """
    Chat with the queen about a ticket: the problem, what was tried, what to do next. Ctrl-D exits.

    The chat is stored with the ticket; earlier messages are shown first. Without a terminal, every input line
    is a question. The queen acts on messages that start with an order: `nudge it: TEXT`, `stop it: REASON`,
    `acknowledge`; for an admin also `restart it` and `change FILE: TEXT`.
    """
    if say is not None and not say.strip():
        raise typer.BadParameter("the message is blank; give a text, or leave --say out")
    if act and say is None:
        raise typer.BadParameter("--act needs an order in --say TEXT")
    target = service.tickets.get(ticket)
    if say is None:
        converse(service, target, _read_questions(is_prompted=not as_json), by=by, as_json=as_json)
    else:
        answer = service.tickets.chat(target.ticket_id, say, by=by, act=act)
        print_result(answer, answer.text, as_json=as_json)


def converse(
    service: Queenright, ticket: Ticket, questions: Iterable[str], *, by: str, as_json: bool = False
) -> None:
    """Print the ticket and its chat, then ask each question and print the answer."""
    from rich.console import Console

    from queenright.client.errors import RequestRejectedError

    if not as_json:
        names = (ticket.severity, ticket.kind.replace("_", " "), ticket.status.replace("_", " "))
        head = f"{ticket.agent_id}: {', '.join(names)}, since {local_time(ticket.first_seen)}"
        typer.secho(strip_control(head), bold=True)
        typer.echo(strip_control(ticket.cause))
        typer.echo("Ask about the problem, what was tried, or what to do next. Ctrl-D exits.\n")
    for message in service.tickets.messages(ticket.ticket_id, limit=_HISTORY):
        _print_message(message, as_json=as_json)
    for question in questions:
        try:
            with Console(stderr=True).status("the queen is thinking"):
                answer = service.tickets.chat(ticket.ticket_id, question, by=by)
        except RequestRejectedError as error:
            typer.echo(f"queenright: {strip_control(str(error))}", err=True)
        else:
            _print_message(answer, as_json=as_json)


def _print_message(message: ChatMessage, *, as_json: bool) -> None:
    """Print a message below its author and time."""
    if as_json:
        typer.echo(json.dumps(json_values(message)))
        return
    at = f"{datetime.fromtimestamp(message.at, UTC):%Y-%m-%d %H:%M} UTC"
    typer.secho(f"{strip_control(message.by)} {at}", bold=True)
    typer.echo(textwrap.indent(strip_control(message.text), "  ") + "\n")


def _read_questions(*, is_prompted: bool) -> Iterator[str]:
    """Yield what is typed until Ctrl-D, with a prompt, or the lines of a pipe."""
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin if line.strip())
    elif is_prompted:
        import readline  # noqa: F401  # gives `input` line editing and history

        while True:
            try:
                question = input("you> ").strip()
            except (EOFError, KeyboardInterrupt):
                typer.echo()
                return
            if question:
                yield question
