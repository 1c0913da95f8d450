"""
What recovery decides, as pure functions: whether, when and from where, and what became of it.

Times are seconds since the epoch on the service's clock. A clock that is set back never lets more begin.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from queenright.health.findings import FindingKind, Severity
from queenright.health.interventions.target import LADDER
from queenright.health.monitor import WorkerHealth
from queenright.health.recovery.attempt import Recovery
from queenright.health.recovery.respawner import CheckpointRef
from queenright.health.settings import CLOCK_TOLERANCE_SECONDS, HealthSettings
from queenright.health.settings import Recovery as Limits
from queenright.health.state import works_around
from queenright.health.vitals import SessionStatus

HOUR: Final = 3600.0

_JITTER: Final = 0.2
"""Each backoff is longer by up to this share, so that many workers do not come back at once."""
_OVER: Final = frozenset({SessionStatus.COMPLETED, SessionStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class Allowed:
    """A try may begin, at this time."""

    attempt: int
    not_before: float


@dataclass(frozen=True, slots=True)
class Exhausted:
    """No try may begin: a human must look."""

    reason: str


def next_attempt(
    past: Sequence[Recovery],
    begun: Sequence[float],
    *,
    now: float,
    limits: Limits,
    dice: float,
    reviewed: bool = False,
) -> Allowed | Exhausted:
    """
    Say whether a task may be tried again, and when.

    Args:
        past: What was tried with it so far.
        begun: When the tries of the agent were begun, or are to be.
        now: The time.
        limits: The limits.
        dice: 0 to 1, spreads the backoff.
        reviewed: A human has looked at the task: it may go beyond its own limit, the hour's stands.
    """
    tries = [each for each in past if each.started_at is not None]
    if len(tries) >= limits.max_attempts_per_task and not reviewed:
        times = "once" if len(tries) == 1 else f"{len(tries)} times"
        return Exhausted(
            f"it was recovered {times}, which is the limit for one task; look at why it fails, then: "
            f"queenright recover {shlex.quote(tries[0].task_id)} --reviewed"
        )
    if hour_is_full(begun, now=now, limits=limits):
        return Exhausted(
            f"{limits.max_attempts_per_hour} recoveries of this agent were begun within the hour, its "
            "limit; look at what they have in common, and ask again later: queenright recover TASK"
        )
    not_before = now
    if tries:
        last = max(each.ended_at or each.started_at or 0.0 for each in tries)
        not_before = max(now, last + backoff(len(tries), limits, dice))
    return Allowed(len(tries) + 1, not_before)


def backoff(tries: int, limits: Limits, dice: float) -> float:
    """Return how many seconds to wait after the ``tries``-th try; past the table its last entry holds."""
    table = limits.backoff_seconds
    return table[min(tries, len(table)) - 1] * (1.0 + _JITTER * dice)


def hour_is_full(begun: Sequence[float], *, now: float, limits: Limits) -> bool:
    """Return whether so many tries were begun in the hour before ``now`` that none may be added."""
    return free_at(begun, now=now, limits=limits) > now


def free_at(begun: Sequence[float], *, now: float, limits: Limits) -> float:
    """Return when one more try may begin without there being too many within an hour; ``now`` if at once."""
    # What seems to lie in the future counts: the clock was set back.
    counted = sorted(at for at in begun if at > now - HOUR)
    over = len(counted) - limits.max_attempts_per_hour
    return now if over < 0 else counted[over] + HOUR


def choose(chain: Sequence[CheckpointRef]) -> tuple[CheckpointRef | None, tuple[CheckpointRef, ...]]:
    """Return the newest checkpoint that is valid, None if there is none, and the broken ones before it."""
    skipped: list[CheckpointRef] = []
    for link in chain:
        if link.valid:
            return link, tuple(skipped)
        skipped.append(link)
    return None, tuple(skipped)


def without(chain: Sequence[CheckpointRef], broken: CheckpointRef, reason: str) -> tuple[CheckpointRef, ...]:
    """Return the chain with one of it no longer valid."""
    return tuple(replace(link, valid=False, reason=reason) if link == broken else link for link in chain)


def not_needed(
    attempt: Recovery, worker: WorkerHealth | None, heirs: Iterable[WorkerHealth] = ()
) -> str | None:
    """Return why the work need not, or must not, be brought back any more; None if it is as it was."""
    for heir in heirs:
        if not heir.vitals.ended:
            return f"it lives on in session {heir.vitals.session_id!r}"
    if worker is None:
        return None  # forgotten since; whoever brings it back looks at its session
    v = worker.vitals
    if v.status in _OVER:
        return f"it is {v.status.value}: what is over is not brought back"
    if attempt.incarnation_id and v.incarnation_id and v.incarnation_id != attempt.incarnation_id:
        return f"it lives on as incarnation {v.incarnation_id!r}"
    if not v.ended and v.outlived_termination:
        return "its worker works on: it was not terminated"
    if not v.ended and v.last_progress is not None and v.last_progress > attempt.created_at:
        return "it has got further by itself"
    return None


def completed_elsewhere(attempt: Recovery, workers: Iterable[WorkerHealth]) -> str | None:
    """Return why the work is done: another session of the agent has completed the same task since."""
    for worker in workers:
        v = worker.vitals
        if v.session_id == attempt.session_id or v.task_id != attempt.task_id:
            continue
        if v.status is SessionStatus.COMPLETED:
            return f"session {v.session_id!r} has completed it: what is over is not brought back"
    return None


def is_heir(attempt: Recovery, worker: WorkerHealth) -> bool:
    """
    Return whether a worker goes on with the task in a session of its own.

    Args:
        attempt: The try, whose new life nobody has named.
        worker: Any worker.
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
    """Return whether its process has missed its heartbeats: it was killed, or is cut off."""
    return any(
        finding.kind is FindingKind.HEARTBEAT_MISSING and finding.severity is not Severity.LOW
        for finding in worker.findings
    )


def still_runs(worker: WorkerHealth, task_id: str, *, asked: bool, settings: HealthSettings) -> str:
    """
    Return why a task is not brought back whose worker runs, and the way out.

    Args:
        worker: Who is about it.
        task_id: The task.
        asked: Whether it was asked to stop, and nobody knows whether it has.
        settings: When a process counts as lost.
    """
    v = worker.vitals
    if not asked and v.waiting is not None:
        return f"it waits rightly ({v.waiting.value}); answer it, or resume it if its process was killed"
    if not asked:
        which = shlex.join([v.agent_id, "--session", v.session_id])
        return f'it is running; terminate it first: queenright terminate {which} --reason "..."'
    again = f"queenright recover {shlex.quote(task_id)}"
    said = "it was asked to stop, and nothing says that it has; end its process yourself, then"
    if v.last_heartbeat is None and v.heartbeat_interval is None:
        return f"{said} start it where it ran: it sends no heartbeats, so that nobody here sees its end"
    seconds = settings.heartbeat.limit(v.heartbeat_interval)
    return f"{said}: {again} (possible {seconds:g} s after its last heartbeat)"


@dataclass(frozen=True, slots=True)
class Seen:
    """What the close watch has seen: ``goes_on`` says nothing yet."""

    verdict: Literal["goes_on", "succeeded", "failed", "dropped"]
    reason: str = ""
    incarnation_id: str = ""
    """The new life, where that was not known before."""


def watch(attempt: Recovery, worker: WorkerHealth | None, now: float) -> Seen:
    """Judge a worker that was brought back."""
    over = attempt.watch_until is not None and now >= attempt.watch_until
    life = attempt.new_incarnation_id
    if worker is None or worker.vitals.incarnation_id == attempt.incarnation_id != life:
        return Seen("failed", "nothing was heard of it") if over else Seen("goes_on")
    v = worker.vitals
    if v.ended:
        if v.status is SessionStatus.COMPLETED:
            return Seen("succeeded", "it is done", v.incarnation_id)
        if v.status is SessionStatus.CANCELLED:
            return Seen("dropped", "it was cancelled", v.incarnation_id)
        return Seen("failed", f"it has {_ENDS.get(v.status, 'ended')} again", v.incarnation_id)
    # What is left of the life before says nothing about this one.
    is_new = worker.state_since > (attempt.started_at or 0.0)
    bad = worker.state.in_trouble and not works_around(v, worker.findings)
    if bad and (is_new or over):
        return Seen("failed", f"it is {worker.state.value} again: {worker.reason}", v.incarnation_id)
    if not over:
        return Seen("goes_on", incarnation_id=v.incarnation_id)
    since = attempt.started_at or 0.0
    if v.last_progress is not None and v.last_progress >= since:
        return Seen("succeeded", "it has got further", v.incarnation_id)
    # Nothing is wrong with it, and its work may be a long one. That a life of its own is known means that
    # it was heard of.
    if v.incarnation_id not in ("", attempt.incarnation_id) or v.last_event >= since:
        return Seen("succeeded", "it waits" if v.waiting is not None else "it is at work", v.incarnation_id)
    return Seen("failed", "nothing was heard of it", v.incarnation_id)


_ENDS: Final = {SessionStatus.FAILED: "failed", SessionStatus.TERMINATED: "been terminated"}


def note(attempt: Recovery, checkpoint: CheckpointRef | None) -> str:
    """Return what a worker is told that goes on with the work."""
    whence = (
        f"You go on from checkpoint {checkpoint.checkpoint_id}: what was done after it may be missing"
        if checkpoint is not None
        else "There is no checkpoint to go on from, so you begin at the start of the task"
    )
    return (
        f"Recovery, attempt {attempt.attempt}: the run before this one was stopped ({attempt.reason}). "
        f"{whence}, and may have taken effect outside. Check before you do something again, and do not "
        "repeat what led here."
    )


def is_repeatable(recovery: Recovery, worker: WorkerHealth | None) -> bool:
    """Return whether the work may begin again from its start: a person said so, or the task does."""
    return recovery.may_start_over or (worker is not None and worker.vitals.repeatable)


def is_one_failed_run(recovery: Recovery, worker: WorkerHealth | None) -> bool:
    """
    Return whether a run has failed, and nobody asked for it: then nobody need be told.

    Of too many in a row people are told by the agent's ticket, cause ``runs_failed``.
    """
    return (
        recovery.by == LADDER
        and recovery.attempt <= 1
        and worker is not None
        and worker.vitals.status is SessionStatus.FAILED
    )


def not_repeatable(task_id: str, skipped: Sequence[CheckpointRef]) -> str:
    """Return why work without a valid checkpoint is left to a person, and what that person can do."""
    return (
        f"{_no_checkpoint(task_id, skipped)}, and it does not say that it may be repeated; see what it did, "
        f"then begin it again from its start: queenright recover {shlex.quote(task_id)} --from-start"
    )


def from_the_start(attempt: Recovery, skipped: Sequence[CheckpointRef]) -> str:
    """Return what a human is told of work that begins again."""
    return f"{_no_checkpoint(attempt.task_id, skipped)}; it begins again from the start"


def _no_checkpoint(task_id: str, skipped: Sequence[CheckpointRef]) -> str:
    broken = f": {', '.join(link.checkpoint_id for link in skipped)} cannot be believed" if skipped else ""
    return f"task {task_id!r} has no valid checkpoint{broken}"
