"""The terminal interface: screens over one service, kept up to date by its event stream."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar, Final, TypeVar

from textual.actions import ActionParseResult
from textual.app import App
from textual.binding import Binding, BindingType
from textual.dom import DOMNode
from textual.events import Event, Key

from queenright.client.errors import RequestRefusedError, UnreachableError
from queenright.client.notices import Notice as StreamNotice
from queenright.instrumentation.errors import QueenrightError
from queenright.tui.conversation import background_notice
from queenright.tui.fleet import LISTS
from queenright.tui.link import Link
from queenright.tui.notices import STAYS
from queenright.tui.screens.base import Base, DismissNotice, Failed, OpenQueen, OpenTalk, OpenWorker
from queenright.tui.screens.dialogs import Deliberate, Help
from queenright.tui.screens.fleet import FleetScreen
from queenright.tui.screens.queen import QueenScreen
from queenright.tui.screens.talk import TalkScreen
from queenright.tui.screens.worker import WorkerScreen
from queenright.tui.shared import Shared, notice_of
from queenright.tui.values import Loaded, Moment
from queenright.tui.words import clipped

T = TypeVar("T")
_log = logging.getLogger(__name__)

_PAINT: Final = 0.25
_POLL: Final = 1.0
_WORDS: Final = 200
_REFUSED: Final = "not allowed"
_RUNS: Final = frozenset({"client_input_requested", "execution_completed", "execution_failed"})
_ALL_AGAIN: Final = 5
"""Every so many polls all lists are asked for, though no event has said that they have changed."""


class QueenrightApp(App[None]):
    """
    The terminal interface of one service.

    Args:
        link: The service.
        clock: Returns seconds since the epoch.
        notices_stay: Seconds until a notice goes by itself.
    """

    TITLE = "Queenright"
    CSS_PATH = "queenright.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "queen", "Queen", priority=True),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", "Quit", show=False, priority=True),
        Binding("question_mark", "keys", "Keys"),
    ]

    def __init__(
        self,
        link: Link,
        *,
        clock: Callable[[], float] = time.time,
        notices_stay: float = STAYS,
        talks_with: str = "",
    ) -> None:
        super().__init__()
        self._talks_with = talks_with
        """The agent with which it begins a talk; empty: it begins with the fleet."""
        self.shared = Shared(link, clock)
        self._notices_stay = notices_stay
        self._polls = 0
        self._polling = False
        self._asking = asyncio.Lock()
        """Held while lists are asked for: what is no longer stale may not have come yet."""
        self._key_at = 0.0
        """When the newest key came, on the clock of messages."""
        self._last_event: str | None = None
        self._following = False
        self._runs: asyncio.Queue[Moment] = asyncio.Queue()
        """What runs of agents that are loaded ask, and how they end."""

    async def on_mount(self) -> None:
        """Begin with the fleet."""
        self.theme = "textual-dark"
        await self.push_screen(FleetScreen(self.shared))
        if self._talks_with:
            await self.push_screen(TalkScreen(self.shared, self._talks_with))
        self._go_on(self._tell_of_runs)
        self.set_interval(_PAINT, self.paint)
        self.set_interval(_POLL, self._poll)
        self._poll()

    async def on_unmount(self) -> None:
        """Give up the connections."""
        await self.shared.link.close()

    @property
    def front(self) -> Base | None:
        """The screen that is shown, below questions that are asked on top of it."""
        return next((one for one in reversed(self.screen_stack) if isinstance(one, Base)), None)

    async def paint(self) -> None:
        """Show what is known now."""
        try:
            if self.front is not None and self.front.is_mounted:
                await self.front.paint()
        except Exception as error:
            self.failed(error)

    # -- what nobody thought of -----------------------------------------------------------------

    def failed(self, error: Exception) -> None:
        """Say in a notice that something went wrong here, and log it; all else goes on."""
        title = "Something went wrong here"
        text = clipped(f"{type(error).__name__}: {error}", _WORDS)
        if any((one.title, one.text) == (title, text) for one in self.shared.notices):
            return
        _log.error("the terminal interface: %s", text, exc_info=error)
        self._goes_by_itself(self.shared.notices.add("failing", title, text).number)

    def on_failed(self, message: Failed) -> None:
        """Say what went wrong on a screen."""
        self.failed(message.error)

    async def on_event(self, event: Event) -> None:
        """Keep the keys of a burst from a dialog that one of them opened."""
        if isinstance(event, Key) and not event.is_forwarded:
            before, self._key_at = self._key_at, event.time
            if isinstance(self.screen, Deliberate) and not self.screen.takes(event.key, event.time, before):
                return
        await super().on_event(event)

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Do what a key stands for; what goes wrong in it does not end the program."""
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except Exception as error:
            self.failed(error)
            return True

    def _go_on(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something beside all else."""

        async def working() -> None:
            try:
                await work()
            except Exception as error:
                self.failed(error)

        self.run_worker(working(), group="beside")

    # -- what comes from the service ------------------------------------------------------------

    async def _before(self) -> None:
        try:
            self.shared.fleet.take_feed(*await self.shared.link.feed())
        except QueenrightError as error:
            self._not_answered(error)

    async def _follow(self) -> None:
        try:
            async for event in self.shared.link.fleet_events(self._stream_told, self._last_event):
                self.take(event)
        except QueenrightError as error:
            self._not_answered(error)
        finally:
            # Whoever is allowed to ask again follows again.
            self._following = False

    def take(self, event: Moment) -> None:
        """Take in one event of the fleet."""
        self._last_event = event.id or self._last_event
        if not self.shared.fleet.see(event):
            return
        if event.type == "worker_escalation_ticket":
            ticket = event.data["ticket"]
            self.shared.say(
                str(ticket["severity"]), f"judge: {ticket['severity']} ticket on {ticket['worker_agent_id']}"
            )
        number = notice_of(event, self.shared.notices)
        if number is not None:
            self._goes_by_itself(number)
        if event.type in _RUNS and event.graph_id:
            self._runs.put_nowait(event)
        for screen in self.screen_stack:
            if isinstance(screen, Base):
                screen.see(event)

    async def _tell_of_runs(self) -> None:
        """Tell of graphs that nobody looks at: what they ask, and how their runs end."""
        while True:
            event = await self._runs.get()
            try:
                await self._tell_of(event)
            except QueenrightError as error:
                self._not_answered(error)

    async def _tell_of(self, event: Moment) -> None:
        shared = self.shared
        async with self._asking:
            if "loaded" in shared.fleet.stale:
                await _take(shared.link.loaded, shared.fleet.take_loaded)
        for agent in shared.fleet.loaded:
            if event.graph_id in agent.graphs and await shared.owners.belongs(event, agent.agent_id):
                self._tell(event, agent)

    def _tell(self, event: Moment, agent: Loaded) -> None:
        """Show what a graph wants one to know, unless it is in the talk on the screen."""
        front, active = self.front, agent.active
        looked_at = isinstance(front, TalkScreen) and front.agent_id == agent.agent_id
        if isinstance(front, TalkScreen) and looked_at:
            active = front.conversation.active or active
        is_active = event.graph_id == active
        if is_active and (looked_at or agent.agent_id not in self.shared.talked):
            return
        said = background_notice(event, agent_id=agent.agent_id, active=is_active)
        if said is not None:
            notice = self.shared.notices.add(said.kind, said.title, said.text, agent_id=agent.agent_id)
            self._goes_by_itself(notice.number)

    def _goes_by_itself(self, number: int) -> None:
        self.set_timer(self._notices_stay, lambda: self._dismiss(number))

    def _dismiss(self, number: int | None = None) -> None:
        self.shared.notices.dismiss(number)
        self.call_later(self.paint)

    def _stream_told(self, notice: StreamNotice) -> None:
        if notice.kind == "lost":
            self.shared.away = "the service does not answer; trying again"
        elif notice.kind == "connected":
            self.shared.away = ""
            self.shared.fleet.stale |= LISTS
            # From here on nothing is missed: what happened before is asked for now, not sooner. After a break
            # the stream tells what happened meanwhile, and in order.
            if not self.shared.fleet.feed:
                self._go_on(self._before)
        elif notice.kind == "reset":
            self.shared.fleet.stale |= LISTS
            self._go_on(self._before)
            self.shared.say(
                "act", "the service has forgotten what happened meanwhile; lists are as they are now"
            )

    def _poll(self) -> None:
        """Ask for the lists that have changed, and follow what happens."""
        if self._polling:
            return
        if not self._following and not self.shared.away.startswith(_REFUSED):
            self._following = True
            self._go_on(self._follow)
        self._polls += 1
        stale = self.shared.fleet.stale
        if self._polls % _ALL_AGAIN == 0:
            stale |= LISTS
        if stale:
            self._polling = True
            self._go_on(self._ask_again)

    async def _ask_again(self) -> None:
        fleet, link = self.shared.fleet, self.shared.link
        takes: dict[str, Callable[[], Awaitable[None]]] = {
            "workers": lambda: _take(link.workers, fleet.take_workers),
            "tickets": lambda: _take(link.tickets, fleet.take_tickets),
            "breakers": lambda: _take(link.breakers, fleet.take_breakers),
            "loaded": lambda: _take(link.loaded, fleet.take_loaded),
        }
        try:
            async with self._asking:
                for name in sorted(fleet.stale):
                    # Whatever makes it stale again meanwhile is kept.
                    fleet.stale.discard(name)
                    try:
                        await takes[name]()
                    except BaseException:
                        fleet.stale.add(name)
                        raise
            self.shared.away, self.shared.has_answered = "", True
        except QueenrightError as error:
            self._not_answered(error)
        finally:
            self._polling = False
        if self.front is not None:
            self.front.refresh_bindings()

    def _not_answered(self, error: QueenrightError) -> None:
        if isinstance(error, UnreachableError):
            self.shared.away = "the service does not answer; trying again"
        elif isinstance(error, RequestRefusedError) and error.status in (401, 403):
            self.shared.away = f"{_REFUSED}: {error}"
        else:
            self.shared.say("failing", str(error))

    # -- where one goes -------------------------------------------------------------------------

    def on_open_worker(self, message: OpenWorker) -> None:
        """Show one worker."""
        agent_id, _, session_id = message.key.partition("\n")
        self.push_screen(WorkerScreen(self.shared, agent_id, session_id))

    def on_open_talk(self, message: OpenTalk) -> None:
        """Talk with an agent."""
        self.push_screen(TalkScreen(self.shared, message.agent_id))

    def on_open_queen(self, message: OpenQueen) -> None:
        """Talk with the queen about a ticket."""
        ticket = self.shared.fleet.ticket(message.ticket_id)
        if ticket is None:
            self.shared.say("act", "there is no ticket to talk about")
        else:
            self.push_screen(QueenScreen(self.shared, ticket))

    def on_dismiss_notice(self, message: DismissNotice) -> None:
        """Take the newest notice away."""
        self._dismiss()

    def action_queen(self) -> None:
        """Talk with the queen about what is chosen, or what the newest notice is about; again: back."""
        if isinstance(self.screen, QueenScreen):
            self.screen.leave()
        elif isinstance(self.screen, Base):
            newest = self.shared.notices.newest
            ticket_id = newest.ticket_id if newest is not None else ""
            ticket = self.screen.ticket()
            if newest is not None and ticket_id:
                self._dismiss(newest.number)
            self.on_open_queen(OpenQueen(ticket_id or (ticket.ticket_id if ticket else "")))

    def action_keys(self) -> None:
        """Show all keys and commands."""
        self.push_screen(Help())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer the queen only where there is a ticket to talk about."""
        if action == "queen":
            return isinstance(self.screen, QueenScreen) or bool(self.shared.fleet.tickets)
        return True


async def _take(ask: Callable[[], Awaitable[T]], take: Callable[[T], None]) -> None:
    take(await ask())
