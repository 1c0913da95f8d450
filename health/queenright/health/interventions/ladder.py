"""
The intervention ladder: the next step for a worker in trouble, as a pure function.

The steps are up to three nudges (by default), an escalation, a termination and a recovery. Each step waits
for the result of the previous step. Progress resets the ladder. With a stale checkpoint among the findings,
only a checkpoint resets it. See docs/interventions.md. ``actions`` carries out the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from queenright.health.action_kind import ActionKind
from queenright.health.detection.deadlines import find_grace_end, may_have_ended
from queenright.health.detection.health_state import HealthState, is_progressing_despite_breaker, is_stuck
from queenright.health.findings import FindingKind, Severity
from queenright.health.interventions.target import LADDER, Target, WorkerRecord
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.vitals.session_outcome import WorkerStatus


class Level(StrEnum):
    """The position on the ladder."""

    NUDGED = "nudged"
    """The worker was nudged, or is about to be."""
    ESCALATED = "escalated"
    """The orchestrator was asked, and has until ``Ladder.until`` to decide."""
    MORE_TIME = "more_time"
    """The orchestrator gave the worker more time, until ``Ladder.until``."""
    HANDING_OFF = "handing_off"
    """The worker was asked to hand off, until ``Ladder.until``."""
    TERMINATING = "terminating"
    """The worker is being stopped."""
    TERMINATED = "terminated"
    """The worker has stopped and will be recovered."""
    RECOVERING = "recovering"
    """The worker is being recovered by the recovery service, which takes all further steps."""
    HUMAN = "human"
    """No automatic action remains, so a person must act."""


_FINAL_STEPS: Final = frozenset({Level.HANDING_OFF, Level.TERMINATING})
"""Levels of a decision that is carried out even if the worker's recovery was abandoned."""


class Ladder(WorkerRecord):
    """The ladder of one incarnation of a worker. Times are seconds since the epoch."""

    level: Level = Level.NUDGED
    nudges: int = 0
    trouble_since: float
    """When the trouble began."""
    progress_before: float | None = None
    """The last progress before the trouble. Later progress resets the ladder."""
    needs_checkpoint: bool = False
    """Whether the trouble includes a stale checkpoint. If so, only a checkpoint resets the ladder."""
    acted_at: float | None = None
    """When the last action was taken."""
    until: float | None = None
    escalation_id: str = ""
    is_informed: bool = True
    """Whether the worker was asked to hand off, while the level is ``handing_off``."""
    undelivered: str = ""
    """Why the last nudge did not reach the worker; empty if it did, or the worker may still fetch it."""
    is_recoverable: bool = True
    """
    Whether the worker is recovered after its termination. False if a person terminated it without recovery.
    """
    by: str = LADDER
    """The actor that decided the current step. ``reason`` is empty if the findings are the reason."""
    reason: str = ""

    @property
    def is_untouched(self) -> bool:
        """Whether no action was taken since the worker's last progress."""
        return self.level is Level.NUDGED and self.nudges == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderInputs:
    """The facts about a worker that the ladder depends on."""

    target: Target
    status: WorkerStatus
    has_ended: bool
    is_unknown: bool
    """Whether its activity is unknown: it sent only heartbeats, or may have ended during an outage."""
    is_waiting: bool
    state: HealthState
    state_since: float
    """When the worker became stuck or failing, if it is either."""
    is_provider_at_fault: bool
    """Whether the worker's model provider fails, so that no action on the worker would help."""
    is_given_up: bool
    """Whether its recovery was abandoned and it has made no progress since, so that a person must act."""
    grace_until: float
    last_progress: float | None
    last_checkpoint: float | None
    checkpoint_is_stale: bool
    """Whether the age of its last checkpoint makes the worker stuck."""
    resumed_at: float
    """When its last wait ended, or its incarnation began."""

    @classmethod
    def of(cls, worker: WorkerHealth, settings: HealthSettings) -> LadderInputs:
        """Return the facts about a worker now."""
        v = worker.vitals
        return cls(
            target=Target.of(v),
            status=v.status,
            has_ended=v.has_ended,
            # A stall found before an outage of the service is certain and critical.
            is_unknown=v.only_heartbeats or (may_have_ended(v) and not _is_surely_silent(worker)),
            is_waiting=v.may_be_idle,
            # A worker with an open breaker is failing, but needs no action while it makes progress.
            state=HealthState.DEGRADED
            if is_progressing_despite_breaker(v, worker.findings)
            else worker.state,
            state_since=worker.state_since if worker.trouble_since is None else worker.trouble_since,
            is_provider_at_fault=any(f.kind is FindingKind.PROVIDER_FAILURE for f in worker.findings),
            is_given_up=v.has_failed_recovery and settings.acts_on(FindingKind.RECOVERY_FAILED),
            grace_until=find_grace_end(v, settings),
            last_progress=v.last_progress,
            last_checkpoint=v.last_checkpoint,
            checkpoint_is_stale=any(
                f.kind is FindingKind.CHECKPOINT_STALE and is_stuck(f) for f in worker.findings
            ),
            resumed_at=v.clock_base,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderStep:
    """
    The next step.

    ``action`` is due at ``at`` (seconds since the epoch); it is None if no action is due. ``ladder`` is the
    ladder before the action; it is None if the worker needs none.
    """

    ladder: Ladder | None
    action: ActionKind | None = None
    at: float = 0.0


def next_step(ladder: Ladder | None, s: LadderInputs, settings: HealthSettings) -> LadderStep:
    """
    Return the next action on a worker, and when it is due.

    No action is due for a worker that waits, is paused or has finished, or whose recovery was abandoned.
    Within the nudge interval there is at most one action, except for decisions of the orchestrator.
    """
    if ladder is not None and ladder.target != s.target:
        ladder = None
    if s.has_ended:
        return _step_after_end(ladder, s, settings)
    if ladder is not None and not ladder.is_untouched and _has_progressed(ladder, s):
        # The time of the last action is kept, so that the next action waits for the interval.
        ladder = new_ladder(s, ladder.acted_at)
    if s.is_waiting or s.is_unknown or s.is_provider_at_fault or not s.state.is_in_trouble:
        return LadderStep(ladder=ladder)
    if s.is_given_up and (ladder is None or ladder.level not in _FINAL_STEPS):
        return LadderStep(ladder=ladder)
    if ladder is None or ladder.is_untouched:
        ladder = new_ladder(s, ladder.acted_at if ladder is not None else None)
    action, at = _next_action(ladder, s, settings)
    return LadderStep(ladder=ladder, action=action, at=max(at, s.grace_until))


def new_ladder(s: LadderInputs, acted_at: float | None = None) -> Ladder:
    """Return a ladder without actions. ``acted_at`` is the time of the worker's last action."""
    return Ladder(
        **s.target._asdict(),
        trouble_since=s.state_since,
        progress_before=s.last_progress,
        needs_checkpoint=s.checkpoint_is_stale,
        acted_at=acted_at,
    )


def _step_after_end(ladder: Ladder | None, s: LadderInputs, settings: HealthSettings) -> LadderStep:
    """
    Return the step for a worker that has ended. It is recovered if it crashed or was terminated, but not if
    it completed or was cancelled.
    """
    if s.status is WorkerStatus.UNKNOWN:
        # The worker was silent for too long, or a person resolved its ticket, so there is no automatic
        # action.
        return LadderStep(ladder=None)
    level = ladder.level if ladder is not None else None
    is_failure = s.status in (WorkerStatus.FAILED, WorkerStatus.TERMINATED)
    # A worker that is being terminated may report its own end first, as cancelled.
    if not is_failure and level not in (Level.TERMINATING, Level.TERMINATED):
        return LadderStep(ladder=None)
    if level in (Level.RECOVERING, Level.HUMAN):
        return LadderStep(ladder=ladder)
    # A worker that ended before its termination counts as terminated.
    if level in (Level.TERMINATING, Level.TERMINATED):
        return LadderStep(ladder=ladder, action=ActionKind.RECOVER, at=s.state_since)
    if s.status is not WorkerStatus.FAILED or s.is_given_up or not settings.recovery.automatic:
        return LadderStep(ladder=None)
    crash = new_ladder(s).model_copy(update={"level": Level.TERMINATED})
    return LadderStep(ladder=crash, action=ActionKind.RECOVER, at=s.state_since)


def _next_action(
    ladder: Ladder, s: LadderInputs, settings: HealthSettings
) -> tuple[ActionKind | None, float]:
    nudge = settings.intervention.nudge
    earliest = s.state_since
    if ladder.acted_at is not None:
        earliest = max(earliest, ladder.acted_at + nudge.interval_seconds)
    # After a wait or recovery, the worker gets a full interval before the final step.
    until = max(ladder.until or earliest, max(s.state_since, s.resumed_at) + nudge.interval_seconds)
    match ladder.level:
        case Level.NUDGED:
            # An agent in an error loop does not read reminders, so escalate immediately.
            may_nudge = nudge.enabled and s.state is not HealthState.FAILING
            if may_nudge and ladder.nudges < nudge.max_attempts:
                return ActionKind.NUDGE, earliest
            return ActionKind.ESCALATE, earliest
        case Level.MORE_TIME:
            return ActionKind.ESCALATE, ladder.until or earliest
        case Level.HANDING_OFF if not ladder.is_informed:
            return ActionKind.NUDGE, s.state_since
        case Level.ESCALATED | Level.HANDING_OFF:
            return ActionKind.TERMINATE, until
        case Level.TERMINATING:
            return ActionKind.TERMINATE, s.state_since
        case Level.TERMINATED | Level.RECOVERING | Level.HUMAN:
            return None, 0.0


def _is_surely_silent(worker: WorkerHealth) -> bool:
    return any(f.kind is FindingKind.STALL and f.severity is Severity.CRITICAL for f in worker.findings)


def _has_progressed(ladder: Ladder, s: LadderInputs) -> bool:
    if ladder.needs_checkpoint and s.checkpoint_is_stale:
        return s.last_checkpoint is not None and s.last_checkpoint > ladder.trouble_since
    if s.last_progress is None:
        return False
    return ladder.progress_before is None or s.last_progress > ladder.progress_before
