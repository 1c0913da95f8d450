"""Recoveries over HTTP: bringing tasks back."""

from __future__ import annotations

from pydantic import Field

from queenright.api.terms import RecoveryState
from queenright.api.wire import NOW, Wire, example_of, shown


class Recovery(Wire):
    """One try to bring a task back. Times in seconds since the epoch."""

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
    incarnation_id: str = Field(description="The life that is over.")
    state: RecoveryState
    attempt: int = Field(description="From 1; 0 where a limit let none begin.")
    by: str
    reason: str
    created_at: float
    not_before: float
    started_at: float | None
    ended_at: float | None
    watch_until: float | None
    from_checkpoint: str | None
    from_start: bool = Field(description="It has begun anew: there was no checkpoint that could be believed.")
    skipped: list[str] = Field(description="Newer checkpoints that could not be believed.")
    new_agent_id: str
    new_session_id: str
    new_incarnation_id: str
    outcome: str = Field(description="How it ended, in words; of one that waits, why it was put off.")
    reviewed: bool = Field(description="A person had looked at it, and let it go beyond its limit.")
    may_start_over: bool = Field(
        default=False, description="A person let it begin again from its start, without a checkpoint."
    )
    exhausted: bool = Field(description="No other try follows: a person must look.")


class RecoveriesPage(Wire):
    """Recoveries, newest first."""

    model_config = shown({"recoveries": [example_of(Recovery)], "next": None})

    recoveries: list[Recovery]
    next: str | None = Field(description="The cursor of the next page; null on the last one.")


class RecoveryStatus(Wire):
    """Where bringing a task back stands."""

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
    attempts: int = Field(description="Tries that were begun.")
    attempts_left: int
    left_this_hour: int = Field(description="Of all tasks of its agent together.")
    active: Recovery | None
    held: str | None = Field(description="Why nothing is begun at present; null while something may be.")
    history: list[Recovery] = Field(description="Newest first.")


class RecoveryResult(Wire):
    """Whether a task will be brought back."""

    model_config = shown(
        {
            "accepted": True,
            "recovery_id": "018f6f7e-0000-7000-8000-0000000000f1",
            "attempt": 1,
            "not_before": NOW + 5,
            "reason": "it begins in 5 s",
        }
    )

    accepted: bool
    recovery_id: str = Field(description="Empty if there is none.")
    attempt: int
    not_before: float | None = Field(description="Seconds since the epoch.")
    reason: str = Field(description="Why not, or what happens now.")
