"""The target of an intervention."""

from __future__ import annotations

from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict

from queenright.health.findings import WorkerKey
from queenright.health.vitals.vital_signs import VitalSigns

LADDER: Final = "ladder"
"""The actor of automatic actions."""


class Target(NamedTuple):
    """One incarnation of a worker's session. An action for one target is never applied to another."""

    agent_id: str
    session_id: str
    incarnation_id: str

    @classmethod
    def of(cls, vitals: VitalSigns) -> Target:
        """Return the current incarnation of a worker."""
        return cls(vitals.agent_id, vitals.session_id, vitals.incarnation_id)

    @property
    def key(self) -> WorkerKey:
        """The agent and the session."""
        return (self.agent_id, self.session_id)

    def __str__(self) -> str:
        return f"{self.agent_id!r} (session {self.session_id!r}, incarnation {self.incarnation_id!r})"


class WorkerRecord(BaseModel):
    """A stored record about one incarnation of a worker."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    agent_id: str
    session_id: str
    incarnation_id: str

    @property
    def target(self) -> Target:
        """The incarnation of the worker that the record is about."""
        return Target(self.agent_id, self.session_id, self.incarnation_id)
