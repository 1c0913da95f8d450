"""`queenright chat`: a chat with the queen about a ticket."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, Protocol

import typer

from queenright.cli.commands.tickets import TicketId
from queenright.cli.options import CURRENT_USER, By, Json
from queenright.cli.output.printing import json_values
from queenright.cli.output.text import local_time, strip_control
from queenright.cli.service import with_service
from queenright.instrumentation.errors import QueenrightError

if TYPE_CHECKING:
    from rich.console import Console

    from queenright.client.synchronous import Queenright

_HISTORY: Final = 20
_CONNECT_SECONDS: Final = 3.0
"""How long a question waits for the stream of answers."""

OnPiece = Callable[[int, str], object]
"""Called with index and text of each piece of an answer; index 0 begins it again."""


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
    row = json_values(service.tickets.get(ticket))
    talk = TicketChat(service, row["ticket_id"], by)
    if say is not None:
        printer = AnswerPrinter(sys.stdout)
        is_streamed = sys.stdout.isatty() and not as_json
        answer = talk.say(say, act=act, on_piece=printer.write if is_streamed else None)
        if as_json:
            typer.echo(json.dumps(answer, indent=2))
        else:
            printer.finish(answer["text"])
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

    def say(self, text: str, *, on_piece: OnPiece | None = None) -> dict[str, Any]:
        """Send a message and return the answer; ``on_piece`` is called with what is written of it."""
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
        self._events = service.events

    def history(self) -> list[dict[str, Any]]:
        """Return the newest messages, oldest first."""
        return [json_values(message) for message in self._tickets.messages(self._ticket_id, limit=_HISTORY)]

    def say(self, text: str, *, act: bool = False, on_piece: OnPiece | None = None) -> dict[str, Any]:
        """Send a message and return the answer; ``act``: the message is an order in free form."""
        with self._following(on_piece) if on_piece else contextlib.nullcontext():
            return json_values(self._tickets.chat(self._ticket_id, text, by=self._by, act=act))

    @contextlib.contextmanager
    def _following(self, on_piece: OnPiece) -> Iterator[None]:
        """Pass on the answer as it is written. The response has it as well, so a failure is not an error."""
        is_connected, is_complete, lock = threading.Event(), threading.Event(), threading.Lock()
        stream = self._events.stream(types=("queen_answer_delta",), on_notice=lambda _: is_connected.set())

        def follow() -> None:
            with contextlib.suppress(QueenrightError):
                for event in stream:
                    with lock:
                        if event.data["ticket_id"] == self._ticket_id and not is_complete.is_set():
                            on_piece(int(event.data["index"]), str(event.data["text"]))
            is_connected.set()

        threading.Thread(target=follow, daemon=True).start()
        is_connected.wait(_CONNECT_SECONDS)
        try:
            yield
        finally:
            with lock:
                is_complete.set()
            stream.close()


class AnswerPrinter:
    """
    Prints an answer as it is written.

    Args:
        file: Where it is printed.
        begin: Called before the first piece.
    """

    def __init__(self, file: IO[str], begin: Callable[[], object] = lambda: None) -> None:
        self._file = file
        self._begin = begin
        self._text: str | None = None

    def write(self, index: int, piece: str) -> None:
        """Print the next piece; with index 0 the answer begins again."""
        if self._text is None:
            self._begin()
        elif index == 0:
            self._file.write("\n")
        self._text = piece if index == 0 else (self._text or "") + piece
        self._file.write(strip_control(piece))
        self._file.flush()

    @property
    def has_begun(self) -> bool:
        """Whether a piece was printed."""
        return self._text is not None

    def finish(self, text: str) -> None:
        """Print what is missing of the complete answer, and end the line."""
        if self._text is not None and not text.startswith(self._text):
            self._file.write("\n")
            self._text = None
        self._file.write(strip_control(text.removeprefix(self._text or "")) + "\n")


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

    status = console.status("the queen is thinking")

    def begin() -> None:
        status.stop()
        console.print("[bold yellow]queen[/bold yellow]")

    printer = AnswerPrinter(console.file, begin)
    try:
        with status:
            answer = talk.say(question, on_piece=printer.write if console.is_terminal else None)
    except RequestRejectedError as refused:
        from rich.markup import escape

        console.print(f"[red]{escape(strip_control(str(refused)))}[/red]\n")
        return
    if printer.has_begun:
        printer.finish(answer["text"])
        console.print()
    else:
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
