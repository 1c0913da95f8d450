"""`queenright chat`: a chat with the queen about a ticket."""

from __future__ import annotations

import contextlib
import json
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from queenright.cli.commands.tickets import TicketId
from queenright.cli.options import CURRENT_USER, By, Json
from queenright.cli.output.printing import print_result, to_json_values
from queenright.cli.output.text import format_local_time, strip_control, to_single_line
from queenright.cli.service import example, with_service

if TYPE_CHECKING:
    from queenright.api.tickets import ChatMessage, Ticket
    from queenright.client.synchronous import Queenright

_HISTORY_LIMIT: Final = 20
_CONNECT_SECONDS: Final = 3.0
"""How long to wait for the stream of answers to connect before a question is sent."""


@example('chat 01a2c4f8 --say "what was tried?"')
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
            help="Treat the text of --say as a free-form order: the queen may nudge, request a "
            "termination, or acknowledge; for an admin, she may also restart a loaded agent, or change a "
            "file of the agent that the text names.",
        ),
    ] = False,
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """
    Chat with the queen about a ticket: the problem, what was tried, what to do next. Ctrl-D exits.

    The chat is stored with the ticket; earlier messages are shown first. Without a terminal, every input line
    is a question. The queen acts on messages that start with an order: `nudge it: TEXT`,
    `terminate it: REASON`, `acknowledge`; from an admin also `restart it` and `change FILE: TEXT`. With
    `--act`, the exit code is 1 if she did not act.
    """
    if say is not None and not say.strip():
        raise typer.BadParameter("the message is blank; give a text, or leave --say out")
    if act and say is None:
        raise typer.BadParameter("--act needs an order in --say TEXT")
    target = service.tickets.get(ticket)
    if say is None:
        converse(service, target, _read_questions(is_prompted=not as_json), by=by, as_json=as_json)
        return
    printer = AnswerPrinter()
    with stream_answer(service, target.ticket_id, None if as_json else printer):
        answer = service.tickets.chat(target.ticket_id, say, by=by, act=act)
    if as_json:
        print_result(answer, answer.text, as_json=True)
    else:
        printer.print_rest(answer.text)
    if act and not answer.actions:
        typer.echo("Nothing was done.", err=True)
        raise typer.Exit(1)


def converse(
    service: Queenright, ticket: Ticket, questions: Iterable[str], *, by: str, as_json: bool = False
) -> None:
    """Print the ticket and its chat, then ask each question and print the answer."""
    if not as_json:
        names = (ticket.severity, ticket.kind.replace("_", " "), ticket.status.replace("_", " "))
        head = f"{ticket.agent_id}: {', '.join(names)}, since {format_local_time(ticket.first_seen)}"
        typer.secho(strip_control(head), bold=True)
        typer.echo(strip_control(ticket.cause))
        typer.echo("Ask about the problem, what was tried, or what to do next. Ctrl-D exits.\n")
    for message in service.tickets.messages(ticket.ticket_id, limit=_HISTORY_LIMIT):
        _print_message(message, as_json=as_json)
    try:
        for question in questions:
            _ask_question(service, ticket.ticket_id, question, by=by, as_json=as_json)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
        typer.echo()


def _ask_question(service: Queenright, ticket_id: str, question: str, *, by: str, as_json: bool) -> None:
    """
    Ask a question and print the answer, or why it was refused.

    Raises:
        RequestRejectedError: The question was refused, and the output is JSON.
    """
    from rich.console import Console

    from queenright.client.errors import RequestRejectedError

    status = Console(stderr=True).status("the queen is thinking")

    def begin() -> None:
        status.stop()
        _print_message_head("queen", time.time())

    printer = AnswerPrinter(indent="  ", begin=begin)
    try:
        with status, stream_answer(service, ticket_id, None if as_json else printer):
            answer = service.tickets.chat(ticket_id, question, by=by)
    except RequestRejectedError as error:
        if as_json:
            raise
        if printer.has_begun:
            typer.echo()
        typer.echo(f"queenright: {to_single_line(str(error))}", err=True)
        return
    if as_json:
        _print_message(answer, as_json=True)
    else:
        printer.print_rest(answer.text)
        typer.echo()


class AnswerPrinter:
    """
    Prints an answer as the queen writes it.

    Args:
        indent: Prefix of every line.
        begin: Called before the first piece is printed.
    """

    def __init__(self, *, indent: str = "", begin: Callable[[], object] = lambda: None) -> None:
        self._indent = indent
        self._begin = begin
        self._text = ""
        self._next_index = 0

    @property
    def has_begun(self) -> bool:
        """Whether a piece was printed."""
        return self._next_index > 0

    def print_piece(self, index: int, piece: str) -> None:
        """Print the next piece. Piece 0 restarts the answer; a piece after a gap is not printed."""
        if index == 0:
            if self.has_begun:
                typer.echo()
            else:
                self._begin()
            self._text, self._next_index = "", 0
            typer.echo(self._indent, nl=False)
        if index == self._next_index:
            self._text, self._next_index = self._text + piece, index + 1
            typer.echo(strip_control(piece).replace("\n", f"\n{self._indent}"), nl=False)

    def print_rest(self, answer: str) -> None:
        """Print the rest of the answer, or all of it if the printed pieces differ, and end the line."""
        is_continued = self.has_begun and answer.startswith(self._text)
        remaining_text = answer.removeprefix(self._text) if is_continued else answer
        self.print_piece(self._next_index if is_continued else 0, remaining_text)
        typer.echo()


@contextlib.contextmanager
def stream_answer(service: Queenright, ticket_id: str, printer: AnswerPrinter | None) -> Iterator[None]:
    """Print the answer to a question that is asked in this context, piece by piece, on a terminal only."""
    if printer is None or not sys.stdout.isatty():
        yield
        return
    from queenright.instrumentation.errors import QueenrightError

    is_connected, is_complete, lock = threading.Event(), threading.Event(), threading.Lock()
    stream = service.events.stream(types=("queen_answer_delta",), on_notice=lambda _: is_connected.set())

    def follow() -> None:
        # The response contains the answer too, so a failure of the stream is not an error.
        with contextlib.suppress(QueenrightError):
            for event in stream:
                with lock:
                    if event.data["ticket_id"] == ticket_id and not is_complete.is_set():
                        printer.print_piece(int(event.data["index"]), str(event.data["text"]))
        is_connected.set()

    threading.Thread(target=follow, daemon=True).start()
    is_connected.wait(_CONNECT_SECONDS)
    try:
        yield
    finally:
        with lock:
            is_complete.set()
        stream.close()


def _print_message(message: ChatMessage, *, as_json: bool) -> None:
    """Print a message below its author and time."""
    if as_json:
        typer.echo(json.dumps(to_json_values(message)))
        return
    _print_message_head(message.by, message.at)
    typer.echo(textwrap.indent(strip_control(message.text), "  ") + "\n")


def _print_message_head(by: str, at: float) -> None:
    typer.secho(f"{strip_control(by)} {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC", bold=True)


def _read_questions(*, is_prompted: bool) -> Iterator[str]:
    """Yield the lines typed at a prompt until Ctrl-D, or the lines of a pipe."""
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin if line.strip())
    elif is_prompted:
        with contextlib.suppress(ImportError):  # missing from some builds of Python
            import readline  # noqa: F401  # gives `input` line editing and history

        while True:
            try:
                question = input("you> ").strip()
            except EOFError:
                typer.echo()
                return
            if question:
                yield question
