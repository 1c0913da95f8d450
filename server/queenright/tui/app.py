"""The terminal interface: screens over one service, updated by its event stream."""

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
from textual.events import Event as TextualEvent
from textual.events import Key

from queenright.api.agent_slot import AgentSlot
from queenright.api.events import Event
from queenright.client.errors import RequestRejectedError, UnreachableError
from queenright.client.notices import Notice as StreamNotice
from queenright.instrumentation.errors import QueenrightError
from queenright.tui.app_state import AppState, add_notice_for
from queenright.tui.conversation import make_background_notice
from queenright.tui.fleet_state import LISTS
from queenright.tui.formatting import clip
from queenright.tui.gateway import ServiceGateway
from queenright.tui.notices import NOTICE_SECONDS
from queenright.tui.screens.base import (
    AppScreen,
    DismissNotice,
    ErrorMessage,
    OpenQueen,
    OpenTalk,
    OpenWorker,
)
from queenright.tui.screens.dialogs import GuardedDialog, HelpDialog
from queenright.tui.screens.fleet import FleetScreen
from queenright.tui.screens.queen import QueenScreen
from queenright.tui.screens.talk import TalkScreen
from queenright.tui.screens.worker import WorkerScreen

T = TypeVar("T")
_log = logging.getLogger(__name__)

_DRAW_SECONDS: Final = 0.25
_POLL_SECONDS: Final = 1.0
_MAX_ERROR_LENGTH: Final = 200
_RUN_EVENTS: Final = frozenset({"client_input_requested", "execution_completed", "execution_failed"})
_FULL_REFRESH_POLLS: Final = 5
"""Polls after which all lists are requested, even if no event has changed them."""


class QueenrightApp(App[None]):
    """
    The terminal interface of one service.

    Args:
        gateway: The service.
        clock: Returns seconds since the epoch.
        notice_seconds: Seconds until a notice disappears.
        start_agent_id: Agent whose conversation is opened at the start; empty opens the fleet.
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
        gateway: ServiceGateway,
        *,
        clock: Callable[[], float] = time.time,
        notice_seconds: float = NOTICE_SECONDS,
        start_agent_id: str = "",
    ) -> None:
        super().__init__()
        self._start_agent_id = start_agent_id
        self.app_state = AppState(gateway, clock)
        self._notice_seconds = notice_seconds
        self._polls = 0
        self._is_polling = False
        self._refresh_lock = asyncio.Lock()
        """Held while lists are requested, because a list that is not marked stale may still be in transit."""
        self._key_at = 0.0
        """Time of the newest key press, on the clock of Textual's messages."""
        self._last_event: str | None = None
        self._is_following = False
        self._is_refused = False
        """Whether the service refused the token: events are not requested again until it answers."""
        self._run_events: asyncio.Queue[Event] = asyncio.Queue()
        """Input requests and results of runs of loaded agents."""

    async def on_mount(self) -> None:
        """Open the first screen, and start polling."""
        self.theme = "textual-dark"
        await self.push_screen(FleetScreen(self.app_state))
        if self._start_agent_id:
            await self.push_screen(TalkScreen(self.app_state, self._start_agent_id))
        self._run_in_background(self._notify_of_runs)
        self.set_interval(_DRAW_SECONDS, self.redraw)
        self.set_interval(_POLL_SECONDS, self._poll)
        self._poll()

    async def on_unmount(self) -> None:
        """Close the connections."""
        await self.app_state.gateway.client.aclose()

    @property
    def active_screen(self) -> AppScreen | None:
        """The active screen, below any dialogs."""
        return next((screen for screen in reversed(self.screen_stack) if isinstance(screen, AppScreen)), None)

    async def redraw(self) -> None:
        """Draw the active screen."""
        try:
            if self.active_screen is not None and self.active_screen.is_mounted:
                await self.active_screen.redraw()
        except Exception as error:
            self.report_error(error)

    # -- unexpected errors ---------------------------------------------------------------------

    def report_error(self, error: Exception) -> None:
        """Log an unexpected error, and show it in a notice."""
        title = "Unexpected error"
        text = clip(f"{type(error).__name__}: {error}", _MAX_ERROR_LENGTH)
        if any((notice.title, notice.text) == (title, text) for notice in self.app_state.notices):
            return
        _log.error("unexpected error in the terminal interface: %s", text, exc_info=error)
        self._expire_notice(self.app_state.notices.add("failing", title, text).number)

    def on_error_message(self, message: ErrorMessage) -> None:
        """Report an unexpected error on a screen."""
        self.report_error(message.error)

    async def on_event(self, event: TextualEvent) -> None:
        """Keep a burst of keys from answering a dialog that one of them opened."""
        if isinstance(event, Key) and not event.is_forwarded:
            previous_key_at, self._key_at = self._key_at, event.time
            if isinstance(self.screen, GuardedDialog) and not self.screen.accepts_key(
                event.key, event.time, previous_key_at
            ):
                return
        await super().on_event(event)

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        """Run the action of a key; errors do not end the program."""
        try:
            return await super().run_action(action, default_namespace, namespaces)
        except Exception as error:
            self.report_error(error)
            return True

    def _run_in_background(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a task in the background; errors are reported."""

        async def run() -> None:
            try:
                await work()
            except Exception as error:
                self.report_error(error)

        self.run_worker(run(), group="background")

    # -- updates from the service ---------------------------------------------------------------

    async def _load_feed(self) -> None:
        try:
            self.app_state.fleet.prepend_feed(*await self.app_state.gateway.feed())
        except QueenrightError as error:
            self._handle_request_error(error)

    async def _follow_events(self) -> None:
        try:
            async for event in self.app_state.gateway.fleet_events(self._on_stream_notice, self._last_event):
                self.handle_event(event)
        except QueenrightError as error:
            self._handle_request_error(error)
        finally:
            # The next poll may follow again.
            self._is_following = False

    def handle_event(self, event: Event) -> None:
        """Handle one event of the fleet."""
        self._last_event = event.id or self._last_event
        if not self.app_state.fleet.handle_event(event):
            return
        if event.type == "worker_escalation_ticket":
            ticket = event.data["ticket"]
            self.app_state.set_status(
                str(ticket["severity"]), f"judge: {ticket['severity']} ticket on {event.agent_id}"
            )
        number = add_notice_for(event, self.app_state.notices)
        if number is not None:
            self._expire_notice(number)
        if event.type in _RUN_EVENTS and event.graph_id:
            self._run_events.put_nowait(event)
        for screen in self.screen_stack:
            if isinstance(screen, AppScreen):
                screen.handle_event(event)

    async def _notify_of_runs(self) -> None:
        """Show notices about runs of graphs that are not on the screen."""
        while True:
            event = await self._run_events.get()
            try:
                await self._notify_about(event)
            except QueenrightError as error:
                self._handle_request_error(error)

    async def _notify_about(self, event: Event) -> None:
        state = self.app_state
        async with self._refresh_lock:
            if "loaded" in state.fleet.stale:
                await _refresh(state.gateway.client.agents.loaded, state.fleet.set_loaded)
        for agent in state.fleet.loaded_agents:
            if event.graph_id in agent.graphs and await state.run_ownership.is_run_of(event, agent.agent_id):
                self._show_run_notice(event, agent)

    def _show_run_notice(self, event: Event, agent: AgentSlot) -> None:
        """Show the notice of a graph, unless its conversation is on the screen."""
        screen, active_graph = self.active_screen, agent.active_graph_id
        is_on_screen = isinstance(screen, TalkScreen) and screen.agent_id == agent.agent_id
        if isinstance(screen, TalkScreen) and is_on_screen:
            active_graph = screen.conversation.active_graph or active_graph
        is_active = event.graph_id == active_graph
        if is_active and (is_on_screen or agent.agent_id not in self.app_state.chatted_agents):
            return
        background = make_background_notice(event, agent_id=agent.agent_id, is_active=is_active)
        if background is not None:
            notice = self.app_state.notices.add(
                background.kind, background.title, background.text, agent_id=agent.agent_id
            )
            self._expire_notice(notice.number)

    def _expire_notice(self, number: int) -> None:
        self.set_timer(self._notice_seconds, lambda: self._dismiss(number))

    def _dismiss(self, number: int | None = None) -> None:
        self.app_state.notices.dismiss(number)
        self.call_later(self.redraw)

    def _on_stream_notice(self, notice: StreamNotice) -> None:
        if notice.kind == "lost":
            self._set_unreachable()
        elif notice.kind == "connected":
            self.app_state.outage, self._is_refused = "", False
            self.app_state.fleet.stale |= LISTS
            # Load earlier events only now that no new one can be missed. After a break the stream itself
            # delivers the events since then, in order.
            if not self.app_state.fleet.feed:
                self._run_in_background(self._load_feed)
        elif notice.kind == "reset":
            self.app_state.fleet.stale |= LISTS
            self._run_in_background(self._load_feed)
            self.app_state.set_status(
                "act", "the service no longer has the events since the break; the lists are being reloaded"
            )

    def _poll(self) -> None:
        """Request the lists that have changed, and follow events."""
        if self._is_polling:
            return
        if not self._is_following and not self._is_refused:
            self._is_following = True
            self._run_in_background(self._follow_events)
        self._polls += 1
        stale = self.app_state.fleet.stale
        if self._polls % _FULL_REFRESH_POLLS == 0:
            stale |= LISTS
        if stale:
            self._is_polling = True
            self._run_in_background(self._refresh_lists)

    async def _refresh_lists(self) -> None:
        fleet, gateway = self.app_state.fleet, self.app_state.gateway
        client = gateway.client
        refreshers: dict[str, Callable[[], Awaitable[None]]] = {
            "attention": lambda: _refresh(client.service.attention, fleet.set_attention),
            "workers": lambda: _refresh(gateway.workers, fleet.set_workers),
            "tickets": lambda: _refresh(gateway.tickets, fleet.set_tickets),
            "breakers": lambda: _refresh(gateway.breakers, fleet.set_breakers),
            "loaded": lambda: _refresh(client.agents.loaded, fleet.set_loaded),
        }
        try:
            async with self._refresh_lock:
                if not self.app_state.has_connected:
                    self.app_state.may_act = (await client.service.caller()).may_act
                for name in sorted(fleet.stale):
                    # Before the request, so that an event during it marks the list again.
                    fleet.stale.discard(name)
                    try:
                        await refreshers[name]()
                    except BaseException:
                        fleet.stale.add(name)
                        raise
            self.app_state.outage, self.app_state.has_connected = "", True
            self._is_refused = False
        except QueenrightError as error:
            self._handle_request_error(error)
        finally:
            self._is_polling = False
        if self.active_screen is not None:
            self.active_screen.refresh_bindings()

    def _handle_request_error(self, error: QueenrightError) -> None:
        if isinstance(error, UnreachableError):
            self._set_unreachable()
        elif isinstance(error, RequestRejectedError) and error.status in (401, 403):
            self.app_state.outage, self._is_refused = f"not allowed: {error}", True
        else:
            self.app_state.set_status("failing", str(error))

    def _set_unreachable(self) -> None:
        self.app_state.outage, self._is_refused = "the service does not respond; reconnecting", False

    # -- navigation ----------------------------------------------------------------------------

    def on_open_worker(self, message: OpenWorker) -> None:
        """Open a worker."""
        agent_id, _, session_id = message.key.partition("\n")
        self.push_screen(WorkerScreen(self.app_state, agent_id, session_id))

    def on_open_talk(self, message: OpenTalk) -> None:
        """Open a conversation with an agent."""
        self.push_screen(TalkScreen(self.app_state, message.agent_id))

    def on_open_queen(self, message: OpenQueen) -> None:
        """Open a chat with the queen about a ticket."""
        ticket = self.app_state.fleet.ticket(message.ticket_id)
        if ticket is None:
            self.app_state.set_status("act", "there is no ticket to chat about")
        else:
            self.push_screen(QueenScreen(self.app_state, ticket.agent_id, ticket.session_id, ticket))

    def on_dismiss_notice(self, message: DismissNotice) -> None:
        """Dismiss the newest notice."""
        self._dismiss()

    def action_queen(self) -> None:
        """Chat with the queen about the newest notice, ticket or worker; pressed again: go back."""
        if isinstance(self.screen, QueenScreen):
            self.screen.leave()
        elif isinstance(self.screen, AppScreen):
            newest_notice = self.app_state.notices.newest
            ticket_id = newest_notice.ticket_id if newest_notice is not None else ""
            ticket = self.screen.ticket()
            if newest_notice is not None and ticket_id:
                self._dismiss(newest_notice.number)
            worker = self.screen.worker if isinstance(self.screen, WorkerScreen) else None
            if worker is not None and not ticket_id and ticket is None:
                self.push_screen(QueenScreen(self.app_state, worker.agent_id, worker.session_id))
            else:
                self.on_open_queen(OpenQueen(ticket_id or (ticket.ticket_id if ticket else "")))

    def action_keys(self) -> None:
        """Show all keys and commands."""
        self.push_screen(HelpDialog())

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Enable the queen only if there is something to ask about."""
        if action == "queen":
            return isinstance(self.screen, QueenScreen | WorkerScreen) or bool(self.app_state.fleet.tickets)
        return True


async def _refresh(request: Callable[[], Awaitable[T]], store: Callable[[T], None]) -> None:
    store(await request())
