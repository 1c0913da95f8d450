"""What every screen has: the line above, notices, a command line, and words on what was just done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.css.query import NoMatches
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Input

from queenright.instrumentation.errors import QueenrightError
from queenright.tui.commands import Command, parse, words_of
from queenright.tui.screens.dialogs import Help
from queenright.tui.shared import Shared
from queenright.tui.values import Moment, Ticket
from queenright.tui.widgets.bars import Brief, TopLine
from queenright.tui.widgets.noticeboard import Noticeboard


class OpenTalk(Message):
    """Somebody wants to talk with an agent that is loaded."""

    def __init__(self, agent_id: str) -> None:
        super().__init__()
        self.agent_id = agent_id


class OpenWorker(Message):
    """Somebody wants to see one worker."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key


class OpenQueen(Message):
    """Somebody wants to talk with the queen about a ticket."""

    def __init__(self, ticket_id: str) -> None:
        super().__init__()
        self.ticket_id = ticket_id


class DismissNotice(Message):
    """Somebody has seen the newest notice."""


class Failed(Message):
    """Something went wrong here that nobody thought of."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class Base(Screen[None]):
    """
    A screen.

    Args:
        shared: What all screens share.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "back", "Back"),
        ("slash", "command", "Command"),
    ]
    COMMAND_HINT: ClassVar[str] = "a command: /help lists them all"
    ALWAYS_TYPING: ClassVar[bool] = False
    """Whether the command line is what the screen is there for."""

    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.shared = shared
        self._brush = asyncio.Lock()

    def compose(self) -> ComposeResult:
        """Lay it out; ``body`` is what is between the lines."""
        yield TopLine()
        yield from self.body()
        yield Brief()
        yield Input(
            placeholder=self.COMMAND_HINT,
            id="typed",
            classes="" if self.ALWAYS_TYPING else "away",
            select_on_focus=False,
        )
        yield Footer(show_command_palette=False)
        yield Noticeboard()

    def body(self) -> ComposeResult:
        """Lay out what this screen is about."""
        yield from ()

    async def paint(self) -> None:
        """Show everything as it is known now; one at a time."""
        async with self._brush:
            # A screen that comes or goes has not all of its parts.
            with contextlib.suppress(NoMatches):
                await self.draw()

    async def draw(self) -> None:
        """Show everything as it is known now, part by part."""
        shared = self.shared
        self.query_one(TopLine).show(
            shared.link.url, shared.fleet, shared.away, has_answered=shared.has_answered
        )
        self.query_one(Brief).show(*shared.said)
        await self.query_one(Noticeboard).show(shared.notices)

    def see(self, event: Moment) -> None:
        """Take in one event of the fleet."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer no command line where there is one."""
        return not (action == "command" and self.ALWAYS_TYPING)

    def ticket(self) -> Ticket | None:
        """Return the ticket that this screen is about now."""
        return next(iter(self.shared.fleet.live_tickets), None)

    # -- typing ---------------------------------------------------------------------------------

    def action_command(self) -> None:
        """Begin to type a command."""
        typed = self.query_one("#typed", Input)
        typed.remove_class("away")
        if not typed.value:
            typed.value = "/"
            typed.cursor_position = 1
        typed.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Do what was typed."""
        line = event.value.strip()
        event.input.value = ""
        self._typed_enough()
        if not line:
            return
        try:
            command = parse(line)
        except QueenrightError as error:
            self.shared.say("failing", str(error))
            return
        try:
            if command is None:
                self.words(words_of(line))
            else:
                self.command(command)
        except Exception as error:
            self.post_message(Failed(error))

    def words(self, text: str) -> None:
        """Take words that are no command."""
        self.shared.say("act", "nobody listens here; /talk <agent> opens a talk with an agent that is loaded")

    def command(self, command: Command) -> None:
        """Carry out a command."""
        match command.name:
            case "help":
                self.app.push_screen(Help())
            case "worker":
                self._open_worker(command.argument)
            case "talk":
                self.post_message(OpenTalk(command.argument))
            case "load":
                self.act(lambda: self._load(command.argument))
            case "unload":
                self.act(lambda: self._unload(command.argument))
            case _:
                self.shared.say(
                    "act", f"/{command.name} is for a talk with an agent; /talk <agent> opens one"
                )

    def _open_worker(self, name: str) -> None:
        found = self.shared.fleet.worker(name)
        if found is None:
            self.shared.say("failing", f"there is no worker {name!r}")
        else:
            self.post_message(OpenWorker(found.key))

    async def _load(self, path: str) -> None:
        agent_id = await self.shared.link.load(path)
        self.shared.say("healthy", f"{agent_id} is loaded")
        self.post_message(OpenTalk(agent_id))

    async def _unload(self, agent_id: str) -> None:
        await self.shared.link.unload(agent_id)
        self.shared.say("healthy", f"{agent_id} is unloaded; its runs are paused")

    def act(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something that takes a while beside all else; what goes wrong is said."""

        async def working() -> None:
            try:
                await work()
            except QueenrightError as error:
                self.shared.say("failing", str(error))
            except Exception as error:
                self.post_message(Failed(error))

        self.run_worker(working(), group="acts")

    # -- going back -----------------------------------------------------------------------------

    def action_back(self) -> None:
        """Dismiss the newest notice; else stop typing; else leave this screen."""
        typed = self.query_one("#typed", Input)
        if len(self.shared.notices):
            self.post_message(DismissNotice())
        elif typed.has_focus and (typed.value or not self.ALWAYS_TYPING):
            typed.value = ""
            self._typed_enough()
        else:
            self.leave()

    def leave(self) -> None:
        """Go back to the screen below; the last one stays."""
        if len([one for one in self.app.screen_stack if isinstance(one, Base)]) > 1:
            self.dismiss()

    def _typed_enough(self) -> None:
        if not self.ALWAYS_TYPING:
            self.query_one("#typed", Input).add_class("away")
            self.focus_list()

    def focus_list(self) -> None:
        """Give the keys to what is moved through here."""
