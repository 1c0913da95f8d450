"""Recoveries of tasks."""

from __future__ import annotations

from pydantic import Field

from queenright.api.terms import RecoveryState
from queenright.api.wire import NOW, Wire, example_of, shown


class Recovery(Wire):
    """A recovery attempt. Times in seconds since the epoch."""

    model_config = shown(
        {
            "recovery_id": "018f6f7e-0000-7000-8000-0000000000f1",
            "task_id": "report-7",
            "agent_id": "researcher",
            "session_id": "session-1",
            "incarnation_id": "018f6f7e-0000-7000-8000-000000000001",
            "state": "watching",
            "attempt": 1,
            "by": "ladder",
            "reason": "it was terminated",
            "created_at": NOW - 60,
            "not_before": NOW - 55,
            "started_at": NOW - 55,
            "ended_at": None,
            "watch_until": NOW + 245,
            "from_checkpoint": "cp-17",
            "from_start": False,
            "skipped": [],
            "new_agent_id": "researcher",
            "new_session_id": "session-2",
            "new_incarnation_id": "018f6f7e-0000-7000-8000-000000000002",
            "outcome": "",
            "reviewed": False,
            "may_start_over": False,
            "exhausted": False,
        }
    )

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
    from_start: bool = Field(description="It started over: there was no valid checkpoint.")
    skipped: list[str] = Field(description="Newer checkpoints that are invalid.")
    new_agent_id: str
    new_session_id: str
    new_incarnation_id: str
    outcome: str = Field(description="How it ended; of a waiting one, why it was postponed.")
    reviewed: bool = Field(
        description="A person reviewed the failure and allowed an attempt beyond the limit."
    )
    may_start_over: bool = Field(
        default=False, description="A person allowed it to start over without a checkpoint."
    )
    exhausted: bool = Field(description="No further attempt follows; a person is needed.")


class RecoveriesPage(Wire):
    """Recoveries, newest first."""

    model_config = shown({"recoveries": [example_of(Recovery)], "next": None})

    recoveries: list[Recovery]
    next: str | None = Field(description="The cursor of the next page; null on the last one.")


class RecoveryStatus(Wire):
    """The recovery status of a task."""

    model_config = shown(
        {
            "task_id": "report-7",
            "attempts": 1,
            "attempts_left": 2,
            "left_this_hour": 9,
            "active": example_of(Recovery),
            "held": None,
            "history": [example_of(Recovery)],
        }
    )

    task_id: str
    attempts: int = Field(description="Attempts that were started.")
    attempts_left: int
    left_this_hour: int = Field(description="Attempts left for all tasks of its agent.")
    active: Recovery | None
    held: str | None = Field(description="Why no attempt can start now; null if one can.")
    history: list[Recovery] = Field(description="Newest first.")


class RecoveryResult(Wire):
    """Whether a recovery attempt was accepted."""

    model_config = shown(
        {
            "accepted": True,
            "recovery_id": "018f6f7e-0000-7000-8000-0000000000f1",
            "attempt": 1,
            "not_before": NOW + 5,
            "reason": "it starts in 5 s",
        }
    )

    accepted: bool
    recovery_id: str = Field(description="Empty: none.")
    attempt: int
    not_before: float | None = Field(description="Seconds since the epoch.")
    reason: str = Field(description="Why not, or what happens next.")
