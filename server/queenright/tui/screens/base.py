"""The base of all screens: top bar, notices, status line and command line."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.css.query import NoMatches
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Input, Static

from queenright.api.events import Event
from queenright.api.tickets import Ticket
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.errors import QueenrightError
from queenright.tui.app_state import AppState
from queenright.tui.commands import Command, get_message_text, parse_command
from queenright.tui.fleet_state import FleetState
from queenright.tui.formatting import clip
from queenright.tui.models import make_worker_key
from queenright.tui.screens.dialogs import HelpDialog
from queenright.tui.styles import DIM, get_colour, get_symbol, style_text
from queenright.tui.widgets.noticeboard import Noticeboard

_OPERATOR_ACTIONS: Final = frozenset({"answer", "nudge", "terminate", "acknowledge", "reset"})
"""Actions that need the role operator."""


class OpenTalk(Message):
    """Request to open a conversation with a loaded agent."""

    def __init__(self, agent_id: str) -> None:
        super().__init__()
        self.agent_id = agent_id


class OpenWorker(Message):
    """Request to open a worker."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key


class OpenQueen(Message):
    """Request to chat with the queen about a ticket."""

    def __init__(self, ticket_id: str) -> None:
        super().__init__()
        self.ticket_id = ticket_id


class DismissNotice(Message):
    """Request to dismiss the newest notice."""


class ErrorMessage(Message):
    """An unexpected error on a screen."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class AppScreen(Screen[None]):
    """
    The base of all screens.

    Args:
        app_state: State that all screens share.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "back", "Back"),
        ("slash", "command", "Command"),
    ]
    COMMAND_HINT: ClassVar[str] = "command; /help lists all"
    ALWAYS_TYPING: ClassVar[bool] = False
    """Whether the command line is always shown, because the screen is a conversation."""

    def __init__(self, app_state: AppState) -> None:
        super().__init__()
        self.app_state = app_state
        self._draw_lock = asyncio.Lock()

    def compose(self) -> ComposeResult:
        """Compose the screen around ``compose_body``."""
        yield TopBar()
        yield from self.compose_body()
        yield StatusLine()
        yield Input(
            placeholder=self.COMMAND_HINT,
            id="input",
            classes="" if self.ALWAYS_TYPING else "hidden",
            select_on_focus=False,
        )
        yield Footer(show_command_palette=False)
        yield Noticeboard()

    def compose_body(self) -> ComposeResult:
        """Compose the content of the screen."""
        yield from ()

    async def redraw(self) -> None:
        """Draw the screen; concurrent calls wait for each other."""
        async with self._draw_lock:
            # A screen that is being mounted or removed lacks some of its widgets.
            with contextlib.suppress(NoMatches):
                await self.draw()

    async def draw(self) -> None:
        """Update all widgets from the state."""
        state = self.app_state
        self.query_one(TopBar).show(
            state.gateway.url, state.fleet, state.outage, has_connected=state.has_connected
        )
        self.query_one(StatusLine).show(*state.status)
        await self.query_one(Noticeboard).show(state.notices)

    def handle_event(self, event: Event) -> None:
        """Handle an event of the fleet."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide actions of other roles, and the command key where the command line is always shown."""
        if action in _OPERATOR_ACTIONS and not self.app_state.may_act:
            return False
        return not (action == "command" and self.ALWAYS_TYPING)

    def ticket(self) -> Ticket | None:
        """Return the ticket that is selected on this screen."""
        return next(iter(self.app_state.fleet.open_tickets), None)

    # -- command line ---------------------------------------------------------------------------------

    def action_command(self, value: str = "/") -> None:
        """Open the command line."""
        line = self.query_one("#input", Input)
        line.remove_class("hidden")
        if not line.value:
            line.value = value
            line.cursor_position = len(value)
        line.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Execute a command, or handle a message."""
        line = event.value.strip()
        event.input.value = ""
        self._end_typing()
        if not line:
            return
        try:
            command = parse_command(line)
        except QueenrightError as error:
            self.app_state.set_status("failing", str(error))
            return
        try:
            if command is None:
                self.handle_message(get_message_text(line))
            else:
                self.handle_command(command)
        except Exception as error:
            self.post_message(ErrorMessage(error))

    def handle_message(self, text: str) -> None:
        """Handle a message."""
        self.app_state.set_status(
            "act", "messages need a conversation; /talk <agent> opens one with a loaded agent"
        )

    def handle_command(self, command: Command) -> None:
        """Execute a command."""
        match command.name:
            case "help":
                self.app.push_screen(HelpDialog())
            case "worker":
                self._open_worker(command.argument)
            case "talk":
                self.post_message(OpenTalk(command.argument))
            case "load":
                self.run_in_background(lambda: self._load(command.argument))
            case "unload":
                self.run_in_background(lambda: self._unload(command.argument))
            case _:
                self.app_state.set_status(
                    "act",
                    f"/{command.name} needs a conversation; /talk <agent> opens one with a loaded agent",
                )

    def _open_worker(self, name: str) -> None:
        worker = self.app_state.fleet.worker(name)
        if worker is None:
            self.app_state.set_status("failing", f"unknown worker {name!r}")
        else:
            self.post_message(OpenWorker(make_worker_key(worker)))

    async def _load(self, path: str) -> None:
        agent_id = (await self.app_state.gateway.client.agents.load(path)).agent_id
        self.app_state.set_status("healthy", f"{agent_id} is loaded")
        self.post_message(OpenTalk(agent_id))

    async def _unload(self, agent_id: str) -> None:
        await self.app_state.gateway.client.agents.unload(agent_id)
        self.app_state.set_status("healthy", f"{agent_id} is unloaded; its runs are paused")

    def run_in_background(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run an action in the background; errors are shown in the status line."""

        async def run() -> None:
            try:
                await work()
            except QueenrightError as error:
                self.app_state.set_status("failing", str(error))
            except Exception as error:
                self.post_message(ErrorMessage(error))

        self.run_worker(run(), group="actions")

    # -- navigation -----------------------------------------------------------------------------

    def action_back(self) -> None:
        """Dismiss the newest notice, or close the command line, or leave this screen."""
        line = self.query_one("#input", Input)
        if len(self.app_state.notices):
            self.post_message(DismissNotice())
        elif line.has_focus and (line.value or not self.ALWAYS_TYPING):
            line.value = ""
            self._end_typing()
        else:
            self.leave()

    def leave(self) -> None:
        """Go back to the previous screen; the last one stays."""
        if len([screen for screen in self.app.screen_stack if isinstance(screen, AppScreen)]) > 1:
            self.dismiss()

    def _end_typing(self) -> None:
        if not self.ALWAYS_TYPING:
            self.query_one("#input", Input).add_class("hidden")
            self.focus_list()

    def focus_list(self) -> None:
        """Focus the main list of the screen."""


_WIDE_COLUMNS: Final = 100


class TopBar(Static):
    """Workers per state, open tickets, and the address of the service or its outage."""

    def __init__(self) -> None:
        super().__init__(id="top")

    def show(self, url: str, fleet: FleetState, outage: str, *, has_connected: bool = True) -> None:
        """Update the bar; ``outage`` is empty if the service answers."""
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(" Queenright ", style="bold reverse")
        if outage:
            line.append(f" ✖ {outage}", style=f"bold {get_colour('failing')}")
        elif not has_connected:
            line.append("  connecting …", style=DIM)
        else:
            for state, count in fleet.counts.items():
                name = f" {state}" if self.size.width >= _WIDE_COLUMNS else ""
                line.append(f"  {get_symbol(state)} {count}{name}", style=get_colour(state) if count else DIM)
        tickets = f"{format_count(len(fleet.open_tickets), 'ticket')}  " if has_connected else ""
        tail = Text(f"{tickets}{_get_host(url)} ", style=DIM)
        gap = self.size.width - line.cell_len - tail.cell_len
        if gap > 1:
            line.append(" " * gap)
            line.append_text(tail)
        self.update(line)


class StatusLine(Static):
    """One line with the result of the last action, or an error."""

    def __init__(self) -> None:
        super().__init__(id="status")

    def show(self, kind: str, text: str) -> None:
        """Show a message; ``kind`` is a key of ``styles``."""
        message = f"{get_symbol(kind)} {clip(text, max(self.size.width - 4, 20))}" if text else ""
        self.update(style_text(message, get_colour(kind)))


def _get_host(url: str) -> str:
    return url.partition("://")[2] or url
