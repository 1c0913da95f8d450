"""The permit: what is asked before anything is done to a worker, whoever wants it."""

from __future__ import annotations

from dataclasses import dataclass

from queenright.health.interventions.target import ActionKind, Target
from queenright.health.monitor import WorkerHealth
from queenright.health.vitals import SessionStatus
from queenright.instrumentation.errors import QueenrightError

_RECOVERABLE = frozenset({SessionStatus.FAILED, SessionStatus.TERMINATED})


class ActionRefusedError(QueenrightError):
    """Raised when something must not be done to a worker; ``reason`` says why, and the way out."""

    def __init__(self, kind: ActionKind, agent_id: str, reason: str) -> None:
        super().__init__(f"cannot {kind.value} {agent_id!r}: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Permit:
    """Says that an action on a target was looked into and is allowed. Only ``permit`` makes one."""

    kind: ActionKind
    target: Target


def permit(kind: ActionKind, target: Target, worker: WorkerHealth | None, *, stopped: str | None) -> Permit:
    """
    Return the permit for an action, as things stand now.

    Args:
        kind: What is to be done.
        target: To whom, as it was when that was decided.
        worker: The worker as it is now; None if it is not known (any more).
        stopped: Why nothing may be done to anybody, and the way out; None while there is no emergency stop.

    Raises:
        ActionRefusedError: The worker is not that one any more, is rightly idle, has finished, or all acting
            is stopped.
    """
    reason = _objection(kind, target, worker, stopped)
    if reason is not None:
        raise ActionRefusedError(kind, target.agent_id, reason)
    return Permit(kind, target)


def _objection(
    kind: ActionKind, target: Target, worker: WorkerHealth | None, stopped: str | None
) -> str | None:
    if stopped is not None:
        return stopped
    if worker is None:
        return "it is not known (any more); queenright list shows who is"
    v = worker.vitals
    if v.incarnation_id != target.incarnation_id:
        return (
            f"it was restarted meanwhile (incarnation {v.incarnation_id!r}, not {target.incarnation_id!r}); "
            "look at it again"
        )
    if kind is ActionKind.RECOVER:
        if not v.ended:
            return "it is running; terminate it first"
        return None if v.status in _RECOVERABLE else f"it is {v.status.value}: what is over is not restarted"
    if v.ended:
        return f"it has ended ({v.status.value})"
    if kind is not ActionKind.ANSWER and v.waiting is not None:
        return f"it waits rightly ({v.waiting.value}); answer it, resume it, or stop its process yourself"
    return None
