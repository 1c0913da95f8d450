"""Recoveries: models and results."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from queenright.health.interventions.target import Target, WorkerRecord


class RecoveryState(StrEnum):
    """The state of a recovery."""

    WAITING = "waiting"
    """The recovery is scheduled."""
    STARTING = "starting"
    """The worker is being started. If the service crashes, the result is unknown."""
    WATCHING = "watching"
    """The worker has started, and is watched closely."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DROPPED = "dropped"
    """The recovery is no longer needed."""


UNDER_WAY: Final = frozenset({RecoveryState.WAITING, RecoveryState.STARTING, RecoveryState.WATCHING})


class Recovery(WorkerRecord):
    """One attempt to recover a task. Times are seconds since the epoch."""

    recovery_id: str
    task_id: str
    state: RecoveryState
    attempt: int
    """The number of the attempt, from 1; 0 if a limit allowed no attempt."""
    by: str
    reason: str
    created_at: float
    not_before: float
    started_at: float | None = None
    ended_at: float | None = None
    watch_until: float | None = None
    from_checkpoint: str | None = None
    from_start: bool = False
    """Whether the task started over, without a valid checkpoint."""
    skipped: tuple[str, ...] = ()
    """The newer checkpoints that were skipped because they are invalid."""
    new_agent_id: str = ""
    new_session_id: str = ""
    new_incarnation_id: str = ""
    outcome: str = ""
    """The result, or why the attempt was postponed."""
    reviewed: bool = False
    """Whether an operator reviewed the task and allowed attempts beyond the limit."""
    may_start_over: bool = False
    """Whether an operator allowed starting from the beginning if there is no valid checkpoint."""
    exhausted: bool = False
    """Whether no further attempt follows, so that an operator must act."""

    @property
    def successor(self) -> Target:
        """The worker that continues the work."""
        agent_id, session_id = self.new_agent_id or self.agent_id, self.new_session_id or self.session_id
        return Target(agent_id, session_id, self.new_incarnation_id)

    @property
    def is_under_way(self) -> bool:
        """Whether the recovery is in progress."""
        return self.state in UNDER_WAY


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryResult:
    """The answer to a request for a recovery."""

    accepted: bool
    recovery_id: str = ""
    """The id of the recovery; empty if there is none."""
    attempt: int = 0
    not_before: float | None = None
    reason: str
    """Why the request was refused, or what happens next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStatus:
    """The status of a task's recovery."""

    task_id: str
    attempts: int
    """The number of attempts that have started."""
    attempts_left: int
    left_this_hour: int
    """The remaining attempts this hour, for all tasks of the agent."""
    active: Recovery | None
    held: str | None
    """Why no attempt may start now, or None."""
    history: tuple[Recovery, ...]
    """All recoveries of the task, newest first."""
