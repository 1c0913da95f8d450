"""Escalations: questions to the orchestrator about a worker, and its decisions. Models and rows."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from queenright.health.interventions.target import WorkerRecord
from queenright.health.store.rows import ModelTable
from queenright.health.store.tables import ESCALATIONS

Decision = Literal["more_time", "hand_off", "terminate"]
MORE_TIME_SECONDS: Final = 900.0
"""The default of ``more_time_seconds`` in a decision."""
OPTIONS: Final[tuple[Decision, ...]] = ("more_time", "hand_off", "terminate")


class EscalationStatus(StrEnum):
    """The status of an escalation."""

    PENDING = "pending"
    DECIDED = "decided"
    TIMED_OUT = "timed_out"
    WITHDRAWN = "withdrawn"
    """The worker made progress, waits, or ended before a decision."""


class Escalation(WorkerRecord):
    """A question to the orchestrator about a worker. Times are seconds since the epoch."""

    escalation_id: str
    reason: str
    options: tuple[Decision, ...] = OPTIONS
    context: dict[str, Any]
    """The worker's summary, and the earlier actions on it."""
    created_at: float
    deadline: float
    status: EscalationStatus = EscalationStatus.PENDING
    decision: Decision | None = None
    decided_by: str = ""
    decided_at: float | None = None
    decision_reason: str = ""
    more_time_seconds: float | None = None


class EscalationAnswer(BaseModel):
    """An orchestrator's decision."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    decision: Decision
    reason: str = ""
    more_time_seconds: float | None = None


escalation_table: Final = ModelTable(ESCALATIONS, Escalation)
