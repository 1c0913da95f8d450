"""What judge and queen share: how a worker is now, and the tool that shows it to a model."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from queenright.health.monitor import HealthMonitor, WorkerHealth
from queenright.health.summary import no_active_session, summarise
from queenright.judge.quoting import quote
from queenright.judge.rules import SUMMARY
from queenright.runtime.events import Clock
from queenright.runtime.tools import Tool


def _no_path(session_id: str) -> str:
    # A session's id is a folder's name in the step logs.
    if session_id == ".." or any(separator in session_id for separator in "/\\\x00"):
        raise ValueError("a session id holds no path separator and no '..'")
    return session_id


SessionId = Annotated[str, Field(max_length=200), AfterValidator(_no_path)]


class SummaryArguments(BaseModel):
    """Which worker."""

    model_config = ConfigDict(extra="forbid")

    agent_id: str = Field(default="", description="The worker; the one in question if left out.")
    session_id: SessionId = Field(default="auto", description="Its session; `auto` is the latest.")
    last_n_steps: int = Field(default=20, ge=1, le=200, description="How many recent verdicts to show.")


class WorkerDesk:
    """
    Looks workers up for a model.

    Args:
        monitor: Knows the workers.
        clock: Now.
    """

    def __init__(self, monitor: HealthMonitor, clock: Clock) -> None:
        self._monitor = monitor
        self._clock = clock
        self.agent_id = ""
        self.session_id = ""

    def look_at(self, agent_id: str, session_id: str) -> None:
        """Say which worker is in question."""
        self.agent_id, self.session_id = agent_id, session_id

    @property
    def health(self) -> WorkerHealth | None:
        """How the worker in question is now; None if it is known no more."""
        return self._monitor.get(self.agent_id, self.session_id)

    def summary(self, last_n_steps: int = 20) -> dict[str, Any] | None:
        """Return the summary of the worker in question, or None if it is known no more."""
        health = self.health
        return None if health is None else summarise(health, self._clock(), last_n_steps)

    def tool(self) -> Tool:
        """Return ``get_worker_health_summary``."""
        return Tool(
            SUMMARY,
            "How a worker is now: verdicts, bad steps since the last ACCEPT, stall, findings, evidence.",
            SummaryArguments,
            self._show,
        )

    def _show(self, given: SummaryArguments) -> str:
        agent_id = given.agent_id or self.agent_id
        session_id = given.session_id
        if session_id in ("", "auto"):
            session_id = self.session_id if agent_id == self.agent_id else ""
        health = self._monitor.get(agent_id, session_id or None)
        if health is None:
            return quote("worker", no_active_session())
        return quote("worker", summarise(health, self._clock(), given.last_n_steps))
