"""Talking with the queen about a ticket, in the terminal."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from queenright.cli import completion_names as names
from queenright.cli.service import LOCAL, WHO, By, Json, TokenFile, Url, connect, values
from queenright.cli.ids import find_ticket

if TYPE_CHECKING:
    from rich.console import Console

    from queenright.client.synchronous.client import Queenright

_SHOWN: Final = 20

Ticket = Annotated[
    str,
    typer.Argument(
        autocompletion=names.tickets, help="Its id, as `queenright tickets` shows it; its beginning will do."
    ),
]
Say = Annotated[
    str | None, typer.Option("--say", metavar="TEXT", help="One question, its answer, and no more.")
]


Act = Annotated[
    bool,
    typer.Option(
        "--act",
        help="What --say says is an order, in whatever words: she may nudge, ask for an end or "
        "acknowledge as she reads it.",
    ),
]


def chat(
    ticket: Ticket,
    say: Say = None,
    act: Act = False,
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """
    Talk with the queen about a ticket: what is wrong, what was tried, what to do next. Ctrl-D ends it.

    What was said before comes first, and what is said stays with the ticket. Without a terminal every line of
    the input is a question. She acts where a message begins with an order: `nudge it: TEXT`,
    `stop it: REASON`, `acknowledge`.
    """
    if not ticket.strip():
        raise typer.BadParameter("the ticket's id is empty")
    if say is not None and not say.strip():
        raise typer.BadParameter("the message is blank; ask something, or leave --say out")
    if act and say is None:
        raise typer.BadParameter("--act is for one order, given with --say TEXT")
    with connect(url, token_file) as service:
        _chat(service, values(find_ticket(service, ticket)), say, act=act, by=by, as_json=as_json)


def _chat(
    service: Queenright, found: dict[str, Any], say: str | None, *, act: bool, by: str, as_json: bool
) -> None:
    talk = Talk(service, found["ticket_id"], by)
    if say is not None:
        answer = talk.say(say, act=act)
        typer.echo(json.dumps(answer, indent=2) if as_json else _plain(answer["text"]))
        return
    if as_json:
        for one in talk.history():
            typer.echo(json.dumps(one))
        for question in _lines():
            typer.echo(json.dumps(talk.say(question)))
        return
    from rich.console import Console

    converse(Console(highlight=False), found, talk)


class Chat(Protocol):
    """The chat about one ticket."""

    def history(self) -> list[dict[str, Any]]:
        """Return the newest of what was said, oldest first."""
        ...

    def say(self, text: str) -> dict[str, Any]:
        """Ask, and return the answer."""
        ...


class Talk:
    """
    The chat about one ticket of a running service.

    Args:
        service: Its client.
        ticket_id: Which ticket.
        by: Who talks.
    """

    def __init__(self, service: Queenright, ticket_id: str, by: str) -> None:
        self._tickets = service.tickets
        self._ticket_id = ticket_id
        self._by = by

    def history(self) -> list[dict[str, Any]]:
        """See ``Chat``."""
        return [values(one) for one in self._tickets.messages(self._ticket_id, limit=_SHOWN)]

    def say(self, text: str, *, act: bool = False) -> dict[str, Any]:
        """See ``Chat``; ``act``: it is an order, in whatever words."""
        return values(self._tickets.chat(self._ticket_id, text, by=self._by, act=act))


def converse(
    console: Console, ticket: Mapping[str, Any], talk: Chat, *, read: Callable[[], str] | None = None
) -> None:
    """
    Show what was said, then ask and answer until the input ends.

    Args:
        console: Where to.
        ticket: What is talked about.
        talk: The chat about it.
        read: Returns what is typed, a line each; raises ``EOFError`` at the end.
    """
    show_ticket(console, ticket)
    show(console, talk.history())
    typed = read or _typed
    if not console.is_terminal and read is None:
        typed = _next_of(_lines())
    while True:
        try:
            question = typed().strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if question:
            _ask(console, talk, question)


def show_ticket(console: Console, ticket: Mapping[str, Any]) -> None:
    """Show whom it is about, and what is wrong."""
    from rich.markup import escape

    names = (ticket["severity"], ticket["kind"].replace("_", " "), ticket["status"].replace("_", " "))
    about = escape(_plain(f"{ticket['worker_agent_id']}: {', '.join(names)}, {ticket['age']}"))
    console.print(f"[bold]{about}[/bold]")
    console.print(escape(_plain(ticket["cause"])))
    console.print("[dim]Ask what is wrong, what was tried, what to do next. Ctrl-D ends.[/dim]\n")


def show(console: Console, messages: Iterable[Mapping[str, Any]]) -> None:
    """Show what was said, with who said it and when."""
    from datetime import UTC, datetime

    from rich.markup import escape
    from rich.padding import Padding
    from rich.text import Text

    for one in messages:
        at = f"{datetime.fromtimestamp(one['at'], UTC):%Y-%m-%d %H:%M} UTC"
        style = "bold" if one["role"] == "operator" else "bold yellow"
        console.print(f"[{style}]{escape(_plain(one['by']))}[/{style}] [dim]{at}[/dim]")
        console.print(Padding(Text(_plain(one["text"])), (0, 0, 1, 2)))


def _ask(console: Console, talk: Chat, question: str) -> None:
    from queenright.client.errors import RequestRefusedError

    try:
        with console.status("the queen thinks"):
            answer = talk.say(question)
    except RequestRefusedError as refused:
        from rich.markup import escape

        console.print(f"[red]{escape(_plain(str(refused)))}[/red]\n")
        return
    show(console, [answer])


def _typed() -> str:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # with it, what is typed can be edited, and comes back with the arrow keys
    return input("you> ")


def _lines() -> Iterable[str]:
    return (line.strip() for line in sys.stdin if line.strip()) if not sys.stdin.isatty() else ()


def _next_of(lines: Iterable[str]) -> Callable[[], str]:
    left = iter(lines)

    def read() -> str:
        try:
            return next(left)
        except StopIteration:
            raise EOFError from None

    return read


def _plain(text: str) -> str:
    from queenright.cli.terminal.progress import plain

    return plain(text)
