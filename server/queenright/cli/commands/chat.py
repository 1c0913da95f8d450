"""`queenright chat`: a chat with the queen about a ticket."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from queenright.cli.commands.tickets import TicketId
from queenright.cli.options import CURRENT_USER, By, Json
from queenright.cli.output.printing import json_values
from queenright.cli.output.text import local_time, strip_control
from queenright.cli.service import with_service
from queenright.cli.short_ids import find_ticket

if TYPE_CHECKING:
    from rich.console import Console

    from queenright.client.synchronous import Queenright

_HISTORY: Final = 20


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
    row = json_values(find_ticket(service, ticket))
    talk = TicketChat(service, row["ticket_id"], by)
    if say is not None:
        answer = talk.say(say, act=act)
        typer.echo(json.dumps(answer, indent=2) if as_json else strip_control(answer["text"]))
        return
    if as_json:
        for message in talk.history():
            typer.echo(json.dumps(message))
        for question in _piped_lines():
            typer.echo(json.dumps(talk.say(question)))
        return
    from rich.console import Console

    converse(Console(highlight=False), row, talk)


class ChatBackend(Protocol):
    """A chat that ``converse`` can show."""

    def history(self) -> list[dict[str, Any]]:
        """Return the newest messages, oldest first."""
        ...

    def say(self, text: str) -> dict[str, Any]:
        """Send a message and return the answer."""
        ...


class TicketChat:
    """
    The chat about one ticket of a running service.

    Args:
        service: Client of the service.
        ticket_id: The ticket.
        by: The operator.
    """

    def __init__(self, service: Queenright, ticket_id: str, by: str) -> None:
        self._tickets = service.tickets
        self._ticket_id = ticket_id
        self._by = by

    def history(self) -> list[dict[str, Any]]:
        """Return the newest messages, oldest first."""
        return [json_values(message) for message in self._tickets.messages(self._ticket_id, limit=_HISTORY)]

    def say(self, text: str, *, act: bool = False) -> dict[str, Any]:
        """Send a message and return the answer; ``act``: the message is an order in free form."""
        return json_values(self._tickets.chat(self._ticket_id, text, by=self._by, act=act))


def converse(
    console: Console,
    ticket: Mapping[str, Any],
    talk: ChatBackend,
    *,
    read: Callable[[], str] | None = None,
) -> None:
    """
    Show the history, then send questions and show answers until the input ends.

    Args:
        console: The terminal.
        ticket: The ticket, as JSON values.
        talk: The chat about it.
        read: Returns the next line of input; raises ``EOFError`` at the end. Default: stdin.
    """
    show_ticket(console, ticket)
    show_messages(console, talk.history())
    read_line = read or _prompt
    if not console.is_terminal and read is None:
        read_line = _reader_of(_piped_lines())
    while True:
        try:
            question = read_line().strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if question:
            _ask(console, talk, question)


def show_ticket(console: Console, ticket: Mapping[str, Any]) -> None:
    """Print the ticket's worker, severity, kind, status, age and cause."""
    from rich.markup import escape

    names = (ticket["severity"], ticket["kind"].replace("_", " "), ticket["status"].replace("_", " "))
    head = escape(
        strip_control(f"{ticket['agent_id']}: {', '.join(names)}, since {local_time(ticket['first_seen'])}")
    )
    console.print(f"[bold]{head}[/bold]")
    console.print(escape(strip_control(ticket["cause"])))
    console.print("[dim]Ask about the problem, what was tried, or what to do next. Ctrl-D exits.[/dim]\n")


def show_messages(console: Console, messages: Iterable[Mapping[str, Any]]) -> None:
    """Print messages with author and time."""
    from datetime import UTC, datetime

    from rich.markup import escape
    from rich.padding import Padding
    from rich.text import Text

    for message in messages:
        at = f"{datetime.fromtimestamp(message['at'], UTC):%Y-%m-%d %H:%M} UTC"
        style = "bold" if message["role"] == "operator" else "bold yellow"
        console.print(f"[{style}]{escape(strip_control(message['by']))}[/{style}] [dim]{at}[/dim]")
        console.print(Padding(Text(strip_control(message["text"])), (0, 0, 1, 2)))


def _ask(console: Console, talk: ChatBackend, question: str) -> None:
    from queenright.client.errors import RequestRejectedError

    try:
        with console.status("the queen is thinking"):
            answer = talk.say(question)
    except RequestRejectedError as refused:
        from rich.markup import escape

        console.print(f"[red]{escape(strip_control(str(refused)))}[/red]\n")
        return
    show_messages(console, [answer])


def _prompt() -> str:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # gives `input` line editing and history
    return input("you> ")


def _piped_lines() -> Iterable[str]:
    return (line.strip() for line in sys.stdin if line.strip()) if not sys.stdin.isatty() else ()


def _reader_of(lines: Iterable[str]) -> Callable[[], str]:
    remaining_lines = iter(lines)

    def read() -> str:
        try:
            return next(remaining_lines)
        except StopIteration:
            raise EOFError from None

    return read
