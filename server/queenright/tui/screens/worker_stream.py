"""The base of screens that show the timeline of one worker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Final

from queenright.api.agents import AgentRow, HistoryRow
from queenright.api.events import Event
from queenright.client.errors import RequestRejectedError
from queenright.instrumentation.errors import QueenrightError
from queenright.tui.app_state import AppState
from queenright.tui.models import Row
from queenright.tui.screens.actions import ActionScreen
from queenright.tui.session_timeline import SessionTimeline

_MIN_INTERVAL_SECONDS: Final = 0.25


class WorkerStreamScreen(ActionScreen):
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
            await asyncio.sleep(_MIN_INTERVAL_SECONDS)

    async def _load_steps(self) -> None:
        has_more = True
        while has_more:
            cursor = self.timeline.last
            try:
                page = await self.app_state.gateway.client.agents.steps(
                    self.agent_id, session_id=self.session_id or None, after=cursor
                )
            except RequestRejectedError as error:
                if error.status != HTTPStatus.NOT_FOUND or cursor is None:
                    raise
                # The log no longer has the last known step.
                self.timeline.clear()
                continue
            # On the first page, `more` refers to earlier steps.
            has_more = page.more and cursor is not None
            self.timeline.add(page)

    async def _follow_events(self) -> None:
        try:
            async for event in self.app_state.gateway.worker_events(self.agent_id):
                if self.history.handle_event(event):
                    self._has_news.set()
        except QueenrightError as error:
            self.app_state.set_status("failing", f"event stream of {self.agent_id} failed: {error}")


_MAX_NUMBERS: Final = 200
_GOOD: Final = "ACCEPT"
_NEUTRAL: Final = frozenset({"CONTINUE"})


class WorkerHistory:
    """
    History of one worker.

    Attributes:
        states: Start time of each state, in seconds since the epoch, oldest first.
        bad_steps: Consecutive bad steps after each step.
        tokens: Tokens of each model call.
    """

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.states: list[tuple[float, str]] = []
        self.bad_steps: deque[int] = deque(maxlen=_MAX_NUMBERS)
        self.tokens: deque[int] = deque(maxlen=_MAX_NUMBERS)

    def load_history(self, rows: Iterable[HistoryRow]) -> None:
        """Insert earlier states, oldest first."""
        for row in rows:
            if row.state and (not self.states or self.states[-1][1] != row.state):
                self.states.append((row.time, row.state))

    def load_worker(self, worker: AgentRow) -> None:
        """Fill in bad steps and state from the list of workers, if events have not set them."""
        if not self.bad_steps:
            self.bad_steps.extend(count_bad_steps(worker.verdicts, worker.bad_steps))
        if not self.states:
            self.states.append((worker.state_since, worker.state))

    def handle_event(self, event: Event) -> bool:
        """Add an event; return whether it is from this worker."""
        if event.agent_id != self.agent_id:
            return False
        if event.type == "health_state_changed":
            self.states.append((event.time, str(event.data["to"])))
        elif event.type == "step_completed":
            last = self.bad_steps[-1] if self.bad_steps else 0
            self.bad_steps.append(_add_bad_step(last, str(event.data.get("verdict") or ""), event.data))
        elif event.type == "llm_call_completed":
            tokens = (event.data.get("input_tokens") or 0) + (event.data.get("output_tokens") or 0)
            self.tokens.append(tokens)
        return True


def count_bad_steps(verdicts: Sequence[str], current_count: int) -> list[int]:
    """Return the consecutive bad steps after each verdict."""
    counts: list[int] = []
    for verdict in verdicts:
        counts.append(_add_bad_step(counts[-1] if counts else 0, verdict, {}))
    if counts and _GOOD not in verdicts:
        # Count the steps before the first known verdict.
        earlier_count = max(current_count - counts[-1], 0)
        counts = [count + earlier_count for count in counts]
    return counts


def _add_bad_step(last: int, verdict: str, data: Row) -> int:
    is_error = bool(data.get("error") or data.get("error_type"))
    if verdict == _GOOD:
        return 0
    if verdict in _NEUTRAL or (not verdict and not is_error):
        return last
    return last + 1
