"""Following one worker: what screens have in common that show its stream."""

from __future__ import annotations

from queenright.instrumentation.errors import QueenrightError
from queenright.tui.screens.base import Base
from queenright.tui.shared import Shared
from queenright.tui.story import Story
from queenright.tui.values import Worker


class Following(Base):
    """
    A screen with the stream of one worker, which goes on whatever else is done there.

    Args:
        shared: What all screens share.
        agent_id: The worker.
        session_id: Which of its sessions; the newest, if it is empty.
    """

    def __init__(self, shared: Shared, agent_id: str, session_id: str = "") -> None:
        super().__init__(shared)
        self.agent_id = agent_id
        self.session_id = session_id
        self.story = Story(agent_id)

    @property
    def worker(self) -> Worker | None:
        """The worker as it is known now."""
        fleet = self.shared.fleet
        return fleet.worker(f"{self.agent_id}\n{self.session_id}") or fleet.worker(self.agent_id)

    def follow(self) -> None:
        """Begin: what happened before, and everything from now on."""
        self.act(self._history)
        self.act(self._events)

    async def _history(self) -> None:
        try:
            self.story.take_history(await self.shared.link.history(self.agent_id))
        except QueenrightError as error:
            self.shared.say("failing", str(error))
        if self.worker is not None:
            self.story.take_worker(self.worker)

    async def _events(self) -> None:
        try:
            async for event in self.shared.link.worker_events(self.agent_id):
                self.story.see(event)
        except QueenrightError as error:
            self.shared.say("failing", f"no stream of {self.agent_id}: {error}")
