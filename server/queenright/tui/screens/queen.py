"""A chat with the queen about a ticket or a worker, next to the worker's timeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Static

from queenright.api.tickets import Ticket
from queenright.instrumentation.durations import format_duration
from queenright.instrumentation.errors import QueenrightError
from queenright.tui import styles
from queenright.tui.app_state import AppState
from queenright.tui.formatting import clip
from queenright.tui.models import ChatEntry, StreamedAnswer, describe_activity, get_health_or_outcome
from queenright.tui.screens.worker_stream import WorkerStreamScreen
from queenright.tui.widgets.chat import Chat
from queenright.tui.widgets.event_log import EventLog

_WIDE_COLUMNS: Final = 100
_NO_TICKET: Final = "It has no ticket. Ask what it does, what happened, or what you can do."


class QueenScreen(WorkerStreamScreen):
    """
    A chat with the queen.

    Args:
        app_state: State that all screens share.
        agent_id: The worker.
        session_id: Its session.
        ticket: The ticket that the chat is about. Without a ticket, the queen answers but takes no orders.
    """

    ALWAYS_TYPING: ClassVar[bool] = True
    COMMAND_HINT: ClassVar[str] = "ask the queen · orders: nudge it: TEXT, terminate it: REASON, acknowledge"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("pageup", "scroll(-1)", "Scroll", key_display="PgUp/PgDn"),
        Binding("pagedown", "scroll(1)", "Scroll", show=False),
    ]

    def __init__(
        self, app_state: AppState, agent_id: str, session_id: str, ticket: Ticket | None = None
    ) -> None:
        super().__init__(app_state, agent_id, session_id)
        self._ticket = ticket
        self._entries: list[ChatEntry] = []
        self._pending = 0
        """Questions without an answer yet."""
        self._partial_answer = StreamedAnswer()

    def compose_body(self) -> ComposeResult:
        """Compose the chat and the timeline side by side."""
        with Horizontal(id="split"):
            with Vertical(id="left"):
                yield Static(id="about")
                yield Chat(name="chat")
            with Vertical(id="right"):
                yield Static(id="worker-state")
                yield EventLog(name="stream")

    def on_mount(self) -> None:
        """Load earlier messages, and follow the worker."""
        self.follow()
        self.run_in_background(self._load_messages)
        self.run_in_background(self._follow_answers)
        self.query_one("#input", Input).focus()

    def ticket(self) -> Ticket | None:
        """Return the ticket, from the latest list; None for a chat about a worker."""
        if self._ticket is None:
            return None
        return self.app_state.fleet.ticket(self._ticket.ticket_id) or self._ticket

    async def draw(self) -> None:
        """Update all widgets from the state."""
        await super().draw()
        ticket = self.ticket()
        self.query_one("#about", Static).update(self._render_summary(ticket))
        self.query_one("#worker-state", Static).update(self._render_worker())
        cause = _NO_TICKET if ticket is None else ticket.cause
        entries = self._entries or [ChatEntry(by="", text=cause, at=0, is_own=False)]
        pending_text = ""
        if self._pending and self._partial_answer.text:
            entries = [
                *entries,
                ChatEntry(
                    by="queen", text=self._partial_answer.text, at=self._partial_answer.at, is_own=False
                ),
            ]
        elif self._pending:
            pending_text = "the queen is thinking …"
        await self.query_one(Chat).show(entries, pending_text)
        self.query_one(EventLog).show(self.timeline.lines)

    def _render_summary(self, ticket: Ticket | None) -> Text:
        title = ("♛ Queen  ", f"bold {styles.get_colour('queen')}")
        if ticket is None:
            return Text.assemble(title, ("no ticket", styles.DIM), no_wrap=True, overflow="ellipsis")
        kind = f" · {ticket.words_kind or ticket.kind}" if self.size.width >= _WIDE_COLUMNS else ""
        return Text.assemble(
            title,
            styles.make_label(ticket.severity),
            f" · {format_duration(self.app_state.clock() - ticket.first_seen)}",
            kind.replace("_", " "),
            f" · {ticket.status}".replace("_", " "),
            no_wrap=True,
            overflow="ellipsis",
        )

    def _render_worker(self) -> Text:
        worker = self.worker
        line = Text(f"{clip(self.agent_id, 24)} ", style="bold", no_wrap=True, overflow="ellipsis")
        if worker is None:
            return line.append("unknown", style=styles.DIM)
        state = styles.make_label(get_health_or_outcome(worker))
        return line.append_text(state).append(f" {describe_activity(worker)}", style=styles.DIM)

    def handle_message(self, text: str) -> None:
        """Send the queen a message."""
        self._entries.append(
            ChatEntry(by=self.app_state.gateway.by, text=text, at=self.app_state.clock(), is_own=True)
        )
        self._pending += 1
        self.run_in_background(lambda: self._ask(text))

    async def _ask(self, text: str) -> None:
        self._partial_answer = StreamedAnswer()
        try:
            client, by = self.app_state.gateway.client, self.app_state.gateway.by
            if self._ticket is None:
                answer = await client.agents.ask_queen(self.agent_id, text, session_id=self.session_id, by=by)
            else:
                answer = await client.tickets.chat(self._ticket.ticket_id, text, by=by)
            self._entries.append(ChatEntry.of(answer))
        except QueenrightError as error:
            self._entries.append(
                ChatEntry(by="", text=f"no answer: {error}", at=self.app_state.clock(), is_own=False)
            )
        finally:
            self._pending -= 1

    async def _follow_answers(self) -> None:
        try:
            async for event in self.app_state.gateway.queen_answers():
                if self._is_about_this(event.data):
                    self._partial_answer = self._partial_answer.add(event)
        except QueenrightError as error:
            self.app_state.set_status("failing", f"event stream of the queen failed: {error}")

    def _is_about_this(self, data: Mapping[str, Any]) -> bool:
        if self._ticket is not None:
            return data.get("ticket_id") == self._ticket.ticket_id
        subject = (data.get("ticket_id"), data.get("agent_id"), data.get("session_id"))
        return subject == ("", self.agent_id, self.session_id)

    async def _load_messages(self) -> None:
        client = self.app_state.gateway.client
        messages = (
            await client.agents.queen_messages(self.agent_id, session_id=self.session_id)
            if self._ticket is None
            else await client.tickets.messages(self._ticket.ticket_id)
        )
        self._entries[:0] = map(ChatEntry.of, messages)

    def action_scroll(self, pages: int) -> None:
        """Scroll the chat."""
        chat = self.query_one(Chat)
        chat.scroll_relative(y=pages * max(chat.size.height - 1, 1), animate=False)
