"""Recoveries of tasks."""

from __future__ import annotations

from pydantic import Field

from queenright.api.base_model import NEXT, ApiModel
from queenright.api.terms import RecoveryState


class Recovery(ApiModel):
    """A recovery attempt. Times in seconds since the epoch."""

    recovery_id: str
    task_id: str
    agent_id: str
    session_id: str
    incarnation_id: str = Field(description="The incarnation that ended.")
    state: RecoveryState
    attempt: int = Field(description="From 1; 0 if a limit allowed none.")
    by: str
    reason: str
    created_at: float
    not_before: float
    started_at: float | None
    ended_at: float | None
    watch_until: float | None
    from_checkpoint: str | None
    from_start: bool = Field(description="Whether it started over, because there was no valid checkpoint.")
    skipped: list[str] = Field(description="Newer checkpoints that are invalid.")
    new_agent_id: str
    new_session_id: str
    new_incarnation_id: str
    outcome: str = Field(description="How it ended; for a waiting recovery, why it was postponed.")
    reviewed: bool = Field(
        description="A person reviewed the failure and allowed an attempt beyond the limit."
    )
    may_start_over: bool = Field(
        default=False, description="A person allowed it to start over without a checkpoint."
    )
    exhausted: bool = Field(description="No further attempt follows; a person is needed.")


class RecoveriesPage(ApiModel):
    """Recoveries, newest first."""

    recoveries: list[Recovery]
    next: str | None = Field(description=NEXT)


class RecoveryStatus(ApiModel):
    """The recovery status of a task."""

    task_id: str
    attempts: int = Field(description="Attempts that were started.")
    attempts_left: int
    left_this_hour: int = Field(description="Attempts left for all tasks of its agent.")
    active: Recovery | None
    held: str | None = Field(description="Why no attempt can start now; null if one can.")
    history: list[Recovery] = Field(description="Newest first.")


class RecoveryResult(ApiModel):
    """Whether a recovery attempt was accepted."""

    accepted: bool
    recovery_id: str = Field(description="Empty: none.")
    attempt: int
    not_before: float | None = Field(description="Seconds since the epoch.")
    reason: str = Field(description="Why the attempt was refused, or what happens next.")
