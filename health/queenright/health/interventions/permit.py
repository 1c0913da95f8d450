"""The permit: the check before every action on a worker, by any caller."""

from __future__ import annotations

from dataclasses import dataclass

from queenright.health.action_kind import ActionKind
from queenright.health.interventions.target import Target
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.instrumentation.errors import ConflictError

_RECOVERABLE = frozenset({WorkerStatus.FAILED, WorkerStatus.TERMINATED})


class ActionRefusedError(ConflictError):
    """Raised when an action is refused. ``reason`` says why, and what to do."""

    def __init__(self, kind: ActionKind, agent_id: str, reason: str) -> None:
        super().__init__(f"cannot {kind.value} {agent_id!r}: {reason}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Permit:
    """Proof that an action on a target was checked and allowed. Only ``permit`` creates one."""

    kind: ActionKind
    target: Target


def permit(
    kind: ActionKind, target: Target, worker: WorkerHealth | None, *, stop_reason: str | None
) -> Permit:
    """
    Return the permit for an action now.

    Args:
        worker: The worker's current health; None if the worker is unknown.
        stop_reason: Why all actions are stopped, and what to do; None without an emergency stop.

    Raises:
        ActionRefusedError: The worker was restarted, waits, has ended or is unknown, or all actions are
            stopped.
    """
    reason = find_objection(kind, target.incarnation_id, worker, stop_reason=stop_reason)
    if reason is not None:
        raise ActionRefusedError(kind, target.agent_id, reason)
    return Permit(kind, target)


def find_objection(
    kind: ActionKind, incarnation_id: str, worker: WorkerHealth | None, *, stop_reason: str | None
) -> str | None:
    """Return why ``permit`` refuses an action on an incarnation of a worker, or None."""
    if stop_reason is not None:
        return stop_reason
    if worker is None:
        return "it is unknown; list workers: queenright list"
    v = worker.vitals
    if v.incarnation_id != incarnation_id:
        return (
            f"the worker was restarted in the meantime (incarnation {v.incarnation_id!r}, not "
            f"{incarnation_id!r}); check it again"
        )
    if kind is ActionKind.RECOVER:
        if not v.has_ended:
            return "it is running; terminate it first"
        if v.status in _RECOVERABLE:
            return None
        return f"it has ended ({v.status.value}), so there is nothing to recover"
    if v.has_ended:
        return f"it has ended ({v.status.value})"
    if kind is not ActionKind.ANSWER and v.may_be_idle:
        return f"it waits ({v.waiting}); answer it, resume it, or stop its process yourself"
    return None
