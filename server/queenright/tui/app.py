"""The terminal interface: screens over one service, kept up to date by its event stream."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import ClassVar, Final, TypeVar

from textual.app import App
from textual.binding import Binding, BindingType

from queenright.client.errors import Refused, Unreachable
from queenright.client.notices import Notice as StreamNotice
from queenright.instrumentation.errors import QueenrightError
from queenright.tui.fleet import LISTS
from queenright.tui.link import Link
from queenright.tui.notices import STAYS
from queenright.tui.screens.base import Base, DismissNotice, OpenQueen, OpenTalk, OpenWorker
from queenright.tui.screens.fleet import FleetScreen
from queenright.tui.screens.queen import QueenScreen
from queenright.tui.screens.talk import TalkScreen, TellBeside
from queenright.tui.screens.worker import WorkerScreen
from queenright.tui.shared import Shared, notice_of
from queenright.tui.values import Moment

T = TypeVar("T")

_PAINT: Final = 0.25
_POLL: Final = 1.0
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
        self, link: Link, *, clock: Callable[[], float] = time.time, notices_stay: float = STAYS
    ) -> None:
        super().__init__()
        self.shared = Shared(link, clock)
        self._notices_stay = notices_stay
        self._polls = 0
        self._polling = False
        self._last_event: str | None = None

    async def on_mount(self) -> None:
        """Begin with the fleet."""
        self.theme = "textual-dark"
        await self.push_screen(FleetScreen(self.shared))
        self.run_worker(self._before(), group="before")
        self.run_worker(self._follow(), group="fleet-events")
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
        if self.front is not None and self.front.is_mounted:
            await self.front.paint()

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
            self.shared.say("failing", f"no events come: {error}")

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
        elif notice.kind == "reset":
            self.shared.fleet.stale |= LISTS
            self.shared.say(
                "act", "the service has forgotten what happened meanwhile; lists are as they are now"
            )

    def _poll(self) -> None:
        """Ask for the lists that have changed."""
        if self._polling:
            return
        self._polls += 1
        stale = self.shared.fleet.stale
        if self._polls % _ALL_AGAIN == 0:
            stale |= LISTS
        if stale:
            self._polling = True
            self.run_worker(self._ask_again(), group="lists")

    async def _ask_again(self) -> None:
        fleet, link = self.shared.fleet, self.shared.link
        wanted = set(fleet.stale)
        fleet.stale -= wanted
        takes: dict[str, Callable[[], Awaitable[None]]] = {
            "workers": lambda: _take(link.workers, fleet.take_workers),
            "tickets": lambda: _take(link.tickets, fleet.take_tickets),
            "breakers": lambda: _take(link.breakers, fleet.take_breakers),
        }
        try:
            for name in sorted(wanted):
                await takes[name]()
                wanted.discard(name)
            self.shared.away = ""
        except QueenrightError as error:
            fleet.stale |= wanted
            self._not_answered(error)
        finally:
            self._polling = False
        if self.front is not None:
            self.front.refresh_bindings()

    def _not_answered(self, error: QueenrightError) -> None:
        if isinstance(error, Unreachable):
            self.shared.away = "the service does not answer; trying again"
        elif isinstance(error, Refused) and error.status in (401, 403):
            self.shared.away = f"not allowed: {error}"
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

    def on_tell_beside(self, message: TellBeside) -> None:
        """Show what a graph in the background has to say."""
        beside = message.beside
        notice = self.shared.notices.add(beside.kind, beside.title, beside.text, agent_id=message.agent_id)
        self._goes_by_itself(notice.number)

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
        from queenright.tui.screens.ask import Help

        self.push_screen(Help())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer the queen only where there is a ticket to talk about."""
        if action == "queen":
            return isinstance(self.screen, QueenScreen) or bool(self.shared.fleet.tickets)
        return True


async def _take(ask: Callable[[], Awaitable[T]], take: Callable[[T], None]) -> None:
    take(await ask())
