"""Recoveries: models and results. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict

from queenright.health.interventions.target import Target


class RecoveryState(StrEnum):
    """The state of a recovery."""

    WAITING = "waiting"
    """It is scheduled."""
    STARTING = "starting"
    """The worker is being started; after a crash it is unknown how far that got."""
    WATCHING = "watching"
    """The worker has started, and is watched closely."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DROPPED = "dropped"
    """It was no longer needed."""


UNDER_WAY: Final = frozenset({RecoveryState.WAITING, RecoveryState.STARTING, RecoveryState.WATCHING})


class Recovery(BaseModel):
    """One attempt to recover a task. Times are seconds since the epoch."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    recovery_id: str
    task_id: str
    agent_id: str
    session_id: str
    incarnation_id: str
    """The life that is over."""
    state: RecoveryState
    attempt: int
    """From 1; 0 where a limit let none begin."""
    by: str
    reason: str
    created_at: float
    not_before: float
    started_at: float | None = None
    ended_at: float | None = None
    watch_until: float | None = None
    from_checkpoint: str | None = None
    from_start: bool = False
    """It has begun from the start of the task: there was no checkpoint, or none that could be believed."""
    skipped: tuple[str, ...] = ()
    """Checkpoints that were newer and could not be believed."""
    new_agent_id: str = ""
    new_session_id: str = ""
    new_incarnation_id: str = ""
    outcome: str = ""
    """How it ended, in words; of one that waits, why it was put off."""
    reviewed: bool = False
    """A human had looked at the task, and let it go beyond its limit."""
    may_start_over: bool = False
    """A person said that it may begin from the start of the task where there is no checkpoint."""
    exhausted: bool = False
    """No other try follows: a human must look."""

    @property
    def target(self) -> Target:
        """Whose work is brought back."""
        return Target(agent_id=self.agent_id, session_id=self.session_id, incarnation_id=self.incarnation_id)

    @property
    def successor(self) -> Target:
        """Who went on with it."""
        return Target(
            agent_id=self.new_agent_id or self.agent_id,
            session_id=self.new_session_id or self.session_id,
            incarnation_id=self.new_incarnation_id,
        )

    @property
    def under_way(self) -> bool:
        """Whether it has not ended."""
        return self.state in UNDER_WAY


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryResult:
    """The answer to a request."""

    accepted: bool
    recovery_id: str
    """Empty if there is none."""
    attempt: int
    not_before: float | None
    reason: str
    """Why not, or what happens now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryStatus:
    """Where the recovery of a task stands."""

    task_id: str
    attempts: int
    """Tries that were begun."""
    attempts_left: int
    left_this_hour: int
    """Of all tasks of its agent together."""
    active: Recovery | None
    held: str | None
    """Why nothing is begun at present; None while something may be."""
    history: tuple[Recovery, ...]
    """Newest first."""
