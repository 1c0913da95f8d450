"""The base of screens that show the timeline of one worker."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Final

from queenright.api.agents import AgentRow
from queenright.client.errors import RequestRejectedError
from queenright.instrumentation.errors import QueenrightError
from queenright.tui.app_state import AppState
from queenright.tui.screens.base import AppScreen
from queenright.tui.session_timeline import SessionTimeline
from queenright.tui.worker_history import WorkerHistory

_PACE_SECONDS: Final = 0.25


class WorkerStreamScreen(AppScreen):
    """
    A screen with the timeline of one worker's session.

    Args:
        app_state: State that all screens share.
        agent_id: The worker.
        session_id: Its session; empty for the newest.
    """

    def __init__(self, app_state: AppState, agent_id: str, session_id: str = "") -> None:
        super().__init__(app_state)
        self.agent_id = agent_id
        self.session_id = session_id
        self.history = WorkerHistory(agent_id)
        self.timeline = SessionTimeline()
        self._has_news = asyncio.Event()
        """Set when steps may have been added."""

    @property
    def worker(self) -> AgentRow | None:
        """The worker, from the latest list."""
        fleet = self.app_state.fleet
        return fleet.worker(f"{self.agent_id}\n{self.session_id}") or fleet.worker(self.agent_id)

    def follow(self) -> None:
        """Load earlier events, and follow new ones."""
        self._has_news.set()
        self.run_in_background(self._load_history)
        self.run_in_background(self._follow_steps)
        self.run_in_background(self._follow_events)

    async def _load_history(self) -> None:
        try:
            self.history.load_history(await self.app_state.gateway.history(self.agent_id))
        except QueenrightError as error:
            self.app_state.set_status("failing", str(error))
        if self.worker is not None:
            self.history.load_worker(self.worker)

    async def _follow_steps(self) -> None:
        """Read the steps that were added, at most a few times a second."""
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            try:
                await self._load_steps()
            except QueenrightError as error:
                self.app_state.set_status("failing", str(error))
            await asyncio.sleep(_PACE_SECONDS)

    async def _load_steps(self) -> None:
        more = True
        while more:
            last = self.timeline.last
            try:
                page = await self.app_state.gateway.steps(self.agent_id, self.session_id, last)
            except RequestRejectedError as error:
                if error.status != HTTPStatus.NOT_FOUND or last is None:
                    raise
                # The log no longer has the last known step.
                self.timeline.clear()
                continue
            # Of a first page, `more` is about earlier steps.
            more = page.more and last is not None
            self.timeline.add(page)

    async def _follow_events(self) -> None:
        try:
            async for event in self.app_state.gateway.worker_events(self.agent_id):
                if self.history.handle_event(event):
                    self._has_news.set()
        except QueenrightError as error:
            self.app_state.set_status("failing", f"event stream of {self.agent_id} failed: {error}")
