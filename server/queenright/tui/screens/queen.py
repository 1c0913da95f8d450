"""The queen: a talk with her about a ticket, while the worker's stream goes on beside it."""

from __future__ import annotations

from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Static

from queenright.instrumentation.errors import QueenrightError
from queenright.tui import styles
from queenright.tui.screens.following import Following
from queenright.tui.shared import Shared
from queenright.tui.values import Said, Ticket
from queenright.tui.widgets.chat import Chat
from queenright.tui.widgets.lines import Lines
from queenright.tui.words import ago, clipped

_WIDE: Final = 100


class QueenScreen(Following):
    """
    A talk with the queen.

    Args:
        shared: What all screens share.
        ticket: What is talked about.
    """

    ALWAYS_TYPING: ClassVar[bool] = True
    COMMAND_HINT: ClassVar[str] = "ask the queen · an order: nudge it: TEXT, stop it: REASON, acknowledge"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "scroll(-1)", "Scroll", key_display="PgUp/PgDn"),
        Binding("pagedown", "scroll(1)", "Scroll", show=False),
    ]

    def __init__(self, shared: Shared, ticket: Ticket) -> None:
        super().__init__(shared, ticket.agent_id, ticket.session_id)
        self._ticket = ticket
        self._said: list[Said] = []
        self._asked = 0
        """Questions that she has not answered yet."""

    def body(self) -> ComposeResult:
        """Lay out the talk and the stream, side by side."""
        with Horizontal(id="split"):
            with Vertical(id="left"):
                yield Static(id="about")
                yield Chat(name="chat")
            with Vertical(id="right"):
                yield Static(id="how")
                yield Lines(name="stream")

    def on_mount(self) -> None:
        """Begin: what was said before, and the stream."""
        self.follow()
        self.act(self._before)
        self.query_one("#typed", Input).focus()

    def ticket(self) -> Ticket | None:
        """Return the ticket as it is known now."""
        return self.shared.fleet.ticket(self._ticket.ticket_id) or self._ticket

    async def draw(self) -> None:
        """Show everything as it is known now."""
        await super().draw()
        now, ticket = self.shared.clock(), self.ticket() or self._ticket
        about = Text.assemble(
            ("♛ Queen  ", f"bold {styles.colour('queen')}"),
            styles.word(ticket.severity),
            f" · {ago(now - ticket.first_seen)}",
            f" · {ticket.kind}".replace("_", " ") if self.size.width >= _WIDE else "",
            f" · {ticket.status}".replace("_", " "),
            no_wrap=True,
            overflow="ellipsis",
        )
        self.query_one("#about", Static).update(about)
        self.query_one("#how", Static).update(self._how())
        waiting = "the queen thinks …" if self._asked else ""
        shown = self._said or [Said(by="", text=ticket.cause, at=0, mine=False)]
        await self.query_one(Chat).show(shown, waiting)
        self.query_one(Lines).show(self.story.lines)

    def _how(self) -> Text:
        worker = self.worker
        line = Text(f"{clipped(self.agent_id, 24)} ", style="bold", no_wrap=True, overflow="ellipsis")
        if worker is None:
            return line.append("is not known", style=styles.DIM)
        state = styles.word(worker.outcome or worker.state)
        return line.append_text(state).append(f" {worker.doing}", style=styles.DIM)

    def words(self, text: str) -> None:
        """Ask her."""
        self._said.append(Said(by=self.shared.link.by, text=text, at=self.shared.clock(), mine=True))
        self._asked += 1
        self.act(lambda: self._ask(text))

    async def _ask(self, text: str) -> None:
        try:
            self._said.append(await self.shared.link.ask_queen(self._ticket.ticket_id, text))
        except QueenrightError as error:
            self._said.append(Said(by="", text=f"no answer: {error}", at=self.shared.clock(), mine=False))
        finally:
            self._asked -= 1

    async def _before(self) -> None:
        self._said[:0] = await self.shared.link.messages(self._ticket.ticket_id)

    def action_scroll(self, pages: int) -> None:
        """Move through what was said."""
        chat = self.query_one(Chat)
        chat.scroll_relative(y=pages * max(chat.size.height - 1, 1), animate=False)
