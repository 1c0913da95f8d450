"""The base of screens that show the event stream of one worker."""

from __future__ import annotations

from queenright.api.agents import AgentRow
from queenright.instrumentation.errors import QueenrightError
from queenright.tui.app_state import AppState
from queenright.tui.screens.base import AppScreen
from queenright.tui.worker_history import WorkerHistory


class WorkerStreamScreen(AppScreen):
    """
    A screen with the event stream of one worker.

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

    @property
    def worker(self) -> AgentRow | None:
        """The worker, from the latest list."""
        fleet = self.app_state.fleet
        return fleet.worker(f"{self.agent_id}\n{self.session_id}") or fleet.worker(self.agent_id)

    def follow(self) -> None:
        """Load earlier events, and follow new ones."""
        self.run_in_background(self._load_history)
        self.run_in_background(self._follow_events)

    async def _load_history(self) -> None:
        try:
            self.history.load_history(await self.app_state.gateway.history(self.agent_id))
        except QueenrightError as error:
            self.app_state.set_status("failing", str(error))
        if self.worker is not None:
            self.history.load_worker(self.worker)

    async def _follow_events(self) -> None:
        try:
            async for event in self.app_state.gateway.worker_events(self.agent_id):
                self.history.handle_event(event)
        except QueenrightError as error:
            self.app_state.set_status("failing", f"event stream of {self.agent_id} failed: {error}")
