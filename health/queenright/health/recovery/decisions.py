"""
Recovery decisions as pure functions: whether to recover a task, when, from which checkpoint, and with which
outcome.

Times are seconds since the epoch on the service's clock. Setting the clock back never allows more recoveries.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from queenright.health.detection.health_state import is_progressing_despite_breaker
from queenright.health.findings import FindingKind, Severity
from queenright.health.interventions.target import LADDER
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.recovery.recovery import Recovery
from queenright.health.recovery.respawner import CheckpointRef
from queenright.health.settings import CLOCK_TOLERANCE_SECONDS, HealthSettings, RecoverySettings
from queenright.health.vitals.session_outcome import WorkerStatus

HOUR: Final = 3600.0

_JITTER: Final = 0.2
"""Each backoff is extended by up to this fraction, so that many workers do not restart at the same time."""
_FINISHED_STATUSES: Final = frozenset({WorkerStatus.COMPLETED, WorkerStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class AttemptAllowed:
    """The decision that a recovery may begin at a time."""

    attempt: int
    not_before: float


@dataclass(frozen=True, slots=True)
class AttemptsExhausted:
    """The decision that no recovery may begin, because a person must act."""

    reason: str


def next_attempt(
    history: Sequence[Recovery],
    starts: Sequence[float],
    *,
    now: float,
    limits: RecoverySettings,
    dice: float,
    reviewed: bool = False,
) -> AttemptAllowed | AttemptsExhausted:
    """
    Decide whether a task may be recovered again, and when.

    Args:
        starts: When recoveries of the agent began, or are scheduled to begin.
        dice: A random number from 0 to 1 that spreads the backoff.
        reviewed: Whether a person has reviewed the task, so that it may exceed its own limit, but not the
            hourly one.
    """
    attempts = [recovery for recovery in history if recovery.started_at is not None]
    if len(attempts) >= limits.max_attempts_per_task and not reviewed:
        times = "once" if len(attempts) == 1 else f"{len(attempts)} times"
        return AttemptsExhausted(
            f"it was recovered {times}, which is the limit for one task; look at why it fails, then: "
            f"queenright recover {shlex.quote(attempts[0].task_id)} --reviewed"
        )
    if hour_is_full(starts, now=now, limits=limits):
        return AttemptsExhausted(
            f"{limits.max_attempts_per_hour} recoveries of this agent began within the hour, which is the "
            "limit; check what they have in common, and ask again later: queenright recover TASK"
        )
    not_before = now
    if attempts:
        last = max(recovery.ended_at or recovery.started_at or 0.0 for recovery in attempts)
        not_before = max(now, last + backoff(len(attempts), limits, dice))
    return AttemptAllowed(len(attempts) + 1, not_before)


def backoff(tries: int, limits: RecoverySettings, dice: float) -> float:
    """
    Return the seconds to wait after attempt number ``tries``. The last configured value applies to all later
    attempts.
    """
    table = limits.backoff_seconds
    return table[min(tries, len(table)) - 1] * (1.0 + _JITTER * dice)


def hour_is_full(starts: Sequence[float], *, now: float, limits: RecoverySettings) -> bool:
    """Return whether the hourly limit is reached."""
    return free_at(starts, now=now, limits=limits) > now


def free_at(starts: Sequence[float], *, now: float, limits: RecoverySettings) -> float:
    """Return when the hourly limit allows the next recovery: ``now`` or later."""
    # Times in the future also count: they show that the clock was set back.
    recent = sorted(at for at in starts if at > now - HOUR)
    excess = len(recent) - limits.max_attempts_per_hour
    return now if excess < 0 else recent[excess] + HOUR


def choose_checkpoint(
    chain: Sequence[CheckpointRef],
) -> tuple[CheckpointRef | None, tuple[CheckpointRef, ...]]:
    """Return the newest valid checkpoint, or None, and the newer invalid checkpoints."""
    invalid: list[CheckpointRef] = []
    for link in chain:
        if link.valid:
            return link, tuple(invalid)
        invalid.append(link)
    return None, tuple(invalid)


def mark_invalid(
    chain: Sequence[CheckpointRef], broken: CheckpointRef, reason: str
) -> tuple[CheckpointRef, ...]:
    """Return the chain with one checkpoint marked invalid."""
    return tuple(replace(link, valid=False, reason=reason) if link == broken else link for link in chain)


def recovery_obstacle(
    attempt: Recovery, worker: WorkerHealth | None, heirs: Iterable[WorkerHealth] = ()
) -> str | None:
    """Return why the task should not be recovered any more, or None."""
    for heir in heirs:
        if not heir.vitals.has_ended:
            return f"it continues in session {heir.vitals.session_id!r}"
    if worker is None:
        return None  # the monitor has removed the worker; the respawner checks its session
    v = worker.vitals
    if v.status in _FINISHED_STATUSES:
        return f"it is {v.status.value}, and needs no recovery"
    if attempt.incarnation_id and v.incarnation_id and v.incarnation_id != attempt.incarnation_id:
        return f"it continues as incarnation {v.incarnation_id!r}"
    if not v.has_ended and v.outlived_termination:
        return "its worker is still running: it was not terminated"
    if not v.has_ended and v.last_progress is not None and v.last_progress > attempt.created_at:
        return "it has made progress on its own"
    return None


def completed_elsewhere(attempt: Recovery, workers: Iterable[WorkerHealth]) -> str | None:
    """Return that another session of the agent has completed the task, or None."""
    for worker in workers:
        v = worker.vitals
        if v.session_id == attempt.session_id or v.task_id != attempt.task_id:
            continue
        if v.status is WorkerStatus.COMPLETED:
            return f"session {v.session_id!r} has completed it, and it needs no recovery"
    return None


def is_heir(attempt: Recovery, worker: WorkerHealth) -> bool:
    """
    Return whether a worker continues the task in another session.

    Args:
        attempt: A recovery whose new incarnation is not known.
    """
    v = worker.vitals
    since = attempt.created_at if attempt.started_at is None else attempt.started_at
    return (
        v.agent_id == attempt.agent_id
        and v.task_id == attempt.task_id
        and v.session_id != attempt.session_id
        and v.incarnation_id not in ("", attempt.incarnation_id)
        and v.incarnation_started >= since - CLOCK_TOLERANCE_SECONDS
    )


def is_lost(worker: WorkerHealth) -> bool:
    """Return whether a worker's heartbeats are missing, so that its process may be killed or disconnected."""
    return any(
        finding.kind is FindingKind.HEARTBEAT_MISSING and finding.severity is not Severity.LOW
        for finding in worker.findings
    )


def still_runs(worker: WorkerHealth, task_id: str, *, is_stopping: bool, settings: HealthSettings) -> str:
    """
    Return why a task whose worker is running is not recovered, and what to do.

    Args:
        is_stopping: Whether a stop was requested and is not confirmed.
        settings: The settings that determine when a process counts as dead.
    """
    v = worker.vitals
    if not is_stopping and v.may_be_idle:
        return f"it waits ({v.waiting}); answer it, or resume it if its process was killed"
    if not is_stopping:
        which = shlex.join([v.agent_id, "--session", v.session_id])
        return f'it is running; terminate it first: queenright terminate {which} --reason "..."'
    command = f"queenright recover {shlex.quote(task_id)}"
    problem = "it was asked to stop, and its end is not confirmed; stop its process yourself, then"
    if v.last_heartbeat is None and v.heartbeat_interval is None:
        return f"{problem} start it where it ran: it sends no heartbeats, so its end cannot be seen from here"
    seconds = settings.heartbeat.limit(v.heartbeat_interval)
    return f"{problem}: {command} (possible {seconds:g} s after its last heartbeat)"


@dataclass(frozen=True, slots=True)
class WatchResult:
    """The verdict on a recovered worker. ``continues`` means that the watch continues."""

    verdict: Literal["continues", "succeeded", "failed", "dropped"]
    reason: str = ""
    incarnation_id: str = ""
    """The worker's new incarnation, or an empty string if it is not known."""


def watch(attempt: Recovery, worker: WorkerHealth | None, now: float) -> WatchResult:
    """Return the verdict on a recovered worker at ``now``. ``worker`` is None if it is unknown."""
    is_over = attempt.watch_until is not None and now >= attempt.watch_until
    new_incarnation_id = attempt.new_incarnation_id
    if worker is None or worker.vitals.incarnation_id == attempt.incarnation_id != new_incarnation_id:
        return WatchResult("failed", "it sent no events") if is_over else WatchResult("continues")
    v = worker.vitals
    if v.has_ended:
        if v.status is WorkerStatus.COMPLETED:
            return WatchResult("succeeded", "it has completed", v.incarnation_id)
        if v.status is WorkerStatus.CANCELLED:
            return WatchResult("dropped", "it was cancelled", v.incarnation_id)
        return WatchResult("failed", f"it has {_END_VERBS.get(v.status, 'ended')} again", v.incarnation_id)
    # A state from before the recovery does not count.
    is_new = worker.state_since > (attempt.started_at or 0.0)
    is_in_trouble = worker.state.is_in_trouble and not is_progressing_despite_breaker(v, worker.findings)
    if is_in_trouble and (is_new or is_over):
        return WatchResult("failed", f"it is {worker.state.value} again: {worker.reason}", v.incarnation_id)
    if not is_over:
        return WatchResult("continues", incarnation_id=v.incarnation_id)
    since = attempt.started_at or 0.0
    if v.last_progress is not None and v.last_progress >= since:
        return WatchResult("succeeded", "it has made progress", v.incarnation_id)
    # The worker is healthy, and its work may take long. A new incarnation means that it sent events.
    if v.incarnation_id not in ("", attempt.incarnation_id) or v.last_event >= since:
        reason = "it waits" if v.waiting is not None else "it is working"
        return WatchResult("succeeded", reason, v.incarnation_id)
    return WatchResult("failed", "it sent no events", v.incarnation_id)


_END_VERBS: Final = {WorkerStatus.FAILED: "failed", WorkerStatus.TERMINATED: "been terminated"}


def note(attempt: Recovery, checkpoint: CheckpointRef | None) -> str:
    """Return the note to a worker that continues the task."""
    start = (
        f"You continue from checkpoint {checkpoint.checkpoint_id}: later work may be missing"
        if checkpoint is not None
        else "There is no checkpoint, so you start the task over"
    )
    return (
        f"Recovery, attempt {attempt.attempt}: the run before this one was stopped ({attempt.reason}). "
        f"{start}, and earlier work may have had outside effects. Check before you repeat anything, and do "
        "not repeat what led here."
    )


def is_repeatable(recovery: Recovery, worker: WorkerHealth | None) -> bool:
    """Return whether a person or the task's own declaration allows it to start over."""
    return recovery.may_start_over or (worker is not None and worker.vitals.repeatable)


def is_one_failed_run(recovery: Recovery, worker: WorkerHealth | None) -> bool:
    """
    Return whether an automatic recovery concerns a single failed run, so that no one is notified of it.

    If too many runs fail in a row, the agent's ticket with cause ``runs_failed`` notifies people.
    """
    return (
        recovery.by == LADDER
        and recovery.attempt <= 1
        and worker is not None
        and worker.vitals.status is WorkerStatus.FAILED
    )


def not_repeatable(task_id: str, invalid: Sequence[CheckpointRef]) -> str:
    """Return why a task without a valid checkpoint is left to a person, and what to do."""
    return (
        f"{_describe_no_checkpoint(task_id, invalid)}, and it is not declared repeatable; check what it did, "
        f"then start it over: queenright recover {shlex.quote(task_id)} --from-start"
    )


def start_over_reason(attempt: Recovery, invalid: Sequence[CheckpointRef]) -> str:
    """Return the reason of a recovery that starts a task over."""
    return f"{_describe_no_checkpoint(attempt.task_id, invalid)}; it starts over"


def _describe_no_checkpoint(task_id: str, invalid: Sequence[CheckpointRef]) -> str:
    invalid_note = f" ({', '.join(link.checkpoint_id for link in invalid)} invalid)" if invalid else ""
    return f"task {task_id!r} has no valid checkpoint{invalid_note}"
