"""Whom an intervention is for, and of which kind it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from queenright.health.findings import WorkerKey
from queenright.health.vitals import VitalSigns

LADDER: Final = "ladder"
"""Who acts when nobody asked."""


class ActionKind(StrEnum):
    """What can be done, in the order of the ladder."""

    NUDGE = "nudge"
    ESCALATE = "escalate"
    TERMINATE = "terminate"
    RECOVER = "recover"
    ANSWER = "answer"
    """Allow or deny what the worker asks permission for; no rung, a person does it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One life of one run of one worker. What was decided about one is never done to another."""

    agent_id: str
    session_id: str
    incarnation_id: str

    @classmethod
    def of(cls, vitals: VitalSigns) -> Target:
        """Return the worker as it lives now."""
        return cls(
            agent_id=vitals.agent_id, session_id=vitals.session_id, incarnation_id=vitals.incarnation_id
        )

    @property
    def key(self) -> WorkerKey:
        """Agent and session."""
        return (self.agent_id, self.session_id)

    def __str__(self) -> str:
        return f"{self.agent_id!r} (session {self.session_id!r}, incarnation {self.incarnation_id!r})"
