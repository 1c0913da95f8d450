"""Permission requests of workers and their answers. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from queenright.health.interventions.target import Target

Answered = Literal["allow", "deny"]
ANSWERS: Final[tuple[Answered, ...]] = ("allow", "deny")


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionRequest:
    """A permission request of one life of a worker. Times are seconds since the epoch."""

    request_id: str
    agent_id: str
    session_id: str
    incarnation_id: str
    tool: str
    question: str
    """What it wants to do, without secrets."""
    asked_at: float
    expires_at: float
    """Until then an answer given here counts; afterwards the person at the terminal is asked."""

    @property
    def target(self) -> Target:
        """The worker that asks."""
        return Target(agent_id=self.agent_id, session_id=self.session_id, incarnation_id=self.incarnation_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionAnswer:
    """A person's answer to a permission request."""

    decision: Answered
    by: str
    reason: str = ""
