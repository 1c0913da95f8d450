"""
The ladder: what comes next for a worker that gets nowhere, as a pure function.

Nudge, nudge, nudge; ask the orchestrator; stop it; bring it back. Each rung waits for the one below to have
had its time, and progress leads back to the ground: any, but that a stale checkpoint takes a checkpoint. The
rungs and their times are IMPL-REQ-003 FR-003.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict

from queenright.health.deadlines import grace_until, may_have_ended
from queenright.health.findings import FindingKind, HealthState, Severity
from queenright.health.interventions.target import LADDER, ActionKind, Target
from queenright.health.monitor import WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.state import is_stuck, works_around
from queenright.health.vitals import SessionStatus


class Level(StrEnum):
    """How far the ladder has been climbed."""

    NUDGED = "nudged"
    """It has been spoken to, or soon will be."""
    ESCALATED = "escalated"
    """The orchestrator was asked, and has until ``Ladder.until``."""
    MORE_TIME = "more_time"
    """It was given time until then."""
    HANDING_OFF = "handing_off"
    """It was told to hand off, and has until then."""
    TERMINATING = "terminating"
    """It is being stopped."""
    TERMINATED = "terminated"
    """It has stopped, and is to be brought back."""
    RECOVERING = "recovering"
    """It is being brought back: from here on that is the recovery's affair."""
    HUMAN = "human"
    """Nothing more is done by itself: a person has to."""


_DECIDED: Final = frozenset({Level.HANDING_OFF, Level.TERMINATING})
"""What somebody has decided is done, to a worker that was given up too."""


class Ladder(BaseModel):
    """How far the ladder has been climbed for one life of a worker. Times are seconds since the epoch."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    agent_id: str
    session_id: str
    incarnation_id: str
    level: Level = Level.NUDGED
    nudges: int = 0
    trouble_since: float
    """When the trouble began."""
    progress_before: float | None = None
    """The last progress before it; a later one ends the ladder."""
    needs_checkpoint: bool = False
    """The trouble includes a stale checkpoint: while that lasts, only a checkpoint ends the ladder."""
    acted_at: float | None = None
    """When something was last done."""
    until: float | None = None
    escalation_id: str = ""
    told: bool = True
    """Of one that has to hand off: whether it has been told so."""
    delivered: bool = True
    """Whether the last nudge got to the worker, or lies where it fetches it."""
    is_recoverable: bool = True
    """Whether it is brought back after it was terminated; not if a person had it stopped for good."""
    by: str = LADDER
    """Who wants it to end, and why; empty: because of how it is."""
    reason: str = ""

    @property
    def grounded(self) -> bool:
        """Whether nothing was done since the worker last got further."""
        return self.level is Level.NUDGED and self.nudges == 0

    @property
    def target(self) -> Target:
        """The life of the worker that this is about."""
        return Target(agent_id=self.agent_id, session_id=self.session_id, incarnation_id=self.incarnation_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Of a worker, what the ladder goes by."""

    target: Target
    status: SessionStatus
    ended: bool
    unknown: bool
    """What it is at, nobody knows: it has only ever sent heartbeats, or may have ended unheard."""
    waiting: bool
    state: HealthState
    state_since: float
    """Of one in trouble: since when, whether it has been stuck or failing since."""
    provider_at_fault: bool
    """Its model's provider fails: nothing that is done to the worker mends that."""
    given_up: bool
    """Nobody brings it back any more, and it has not got further since: a person has its ticket."""
    grace_until: float
    last_progress: float | None
    last_checkpoint: float | None
    checkpoint_is_stale: bool
    """Its last checkpoint is so old that it is stuck."""
    resumed_at: float
    """When its last wait ended, or its life began."""

    @classmethod
    def of(cls, worker: WorkerHealth, settings: HealthSettings) -> Standing:
        """Return how a worker stands now."""
        v = worker.vitals
        return cls(
            target=Target.of(v),
            status=v.status,
            ended=v.ended,
            # A silence that was found before the service was away is certain, and critical.
            unknown=v.only_heartbeats or (may_have_ended(v) and not _is_surely_silent(worker)),
            waiting=v.waiting is not None,
            # An open breaker makes it failing; one that gets further all the same needs no help.
            state=HealthState.DEGRADED if works_around(v, worker.findings) else worker.state,
            state_since=worker.state_since if worker.trouble_since is None else worker.trouble_since,
            provider_at_fault=any(f.kind is FindingKind.PROVIDER_FAILURE for f in worker.findings),
            given_up=v.lost and settings.acts_on(FindingKind.RECOVERY_FAILED),
            grace_until=grace_until(v, settings),
            last_progress=v.last_progress,
            last_checkpoint=v.last_checkpoint,
            checkpoint_is_stale=any(
                f.kind is FindingKind.CHECKPOINT_STALE and is_stuck(f) for f in worker.findings
            ),
            resumed_at=v.clock_base,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """
    What is next.

    ``action`` is due at ``at``; None: nothing is, whatever the time. ``ladder`` is where it stands before
    that; None: on the ground.
    """

    ladder: Ladder | None
    action: ActionKind | None = None
    at: float = 0.0


def next_step(ladder: Ladder | None, s: Standing, settings: HealthSettings) -> Step:
    """
    Return what is to be done next about a worker, and when.

    Nothing is ever due for a worker that waits, is paused or has finished, nothing by itself for one whose
    recovery was given up, and nothing twice within the interval between nudges, but for what the orchestrator
    decides.
    """
    if ladder is not None and ladder.target != s.target:
        ladder = None
    if s.ended:
        return _after_the_end(ladder, s, settings)
    if ladder is not None and not ladder.grounded and _progressed(ladder, s):
        # When something was last done is not forgotten: who has just been acted on is left in peace.
        ladder = foot(s, ladder.acted_at)
    if s.waiting or s.unknown or s.provider_at_fault or not s.state.in_trouble:
        return Step(ladder=ladder)
    if s.given_up and (ladder is None or ladder.level not in _DECIDED):
        return Step(ladder=ladder)
    if ladder is None or ladder.grounded:
        ladder = foot(s, ladder.acted_at if ladder is not None else None)
    action, at = _rung(ladder, s, settings)
    return Step(ladder=ladder, action=action, at=max(at, s.grace_until))


def foot(s: Standing, acted_at: float | None = None) -> Ladder:
    """Return a ladder that was not climbed yet; ``acted_at`` is when something was last done all the same."""
    return Ladder(
        agent_id=s.target.agent_id,
        session_id=s.target.session_id,
        incarnation_id=s.target.incarnation_id,
        trouble_since=s.state_since,
        progress_before=s.last_progress,
        needs_checkpoint=s.checkpoint_is_stale,
        acted_at=acted_at,
    )


def _after_the_end(ladder: Ladder | None, s: Standing, settings: HealthSettings) -> Step:
    """Bring back what crashed and what was stopped; never what finished or was cancelled by its people."""
    if s.status is SessionStatus.UNKNOWN:
        return Step(ladder=None)  # dead for long, or settled by a person: nothing more is done by itself
    level = ladder.level if ladder is not None else None
    failed = s.status in (SessionStatus.FAILED, SessionStatus.TERMINATED)
    # Of what is stopped on our request, its own word about that may come first: that it was cancelled.
    if not failed and level not in (Level.TERMINATING, Level.TERMINATED):
        return Step(ladder=None)
    if level in (Level.RECOVERING, Level.HUMAN):
        return Step(ladder=ladder)
    # One that was to be stopped and has ended before anybody did is as good as stopped.
    if level in (Level.TERMINATING, Level.TERMINATED):
        return Step(ladder=ladder, action=ActionKind.RECOVER, at=s.state_since)
    if s.status is not SessionStatus.FAILED or s.given_up or not settings.recovery.automatic:
        return Step(ladder=None)
    crashed = foot(s).model_copy(update={"level": Level.TERMINATED})
    return Step(ladder=crashed, action=ActionKind.RECOVER, at=s.state_since)


def _rung(ladder: Ladder, s: Standing, settings: HealthSettings) -> tuple[ActionKind | None, float]:
    nudge = settings.intervention.nudge
    rested = s.state_since
    if ladder.acted_at is not None:
        rested = max(rested, ladder.acted_at + nudge.interval_seconds)
    # Whoever waited, or was well, in between gets an interval of its own before anything final.
    until = max(ladder.until or rested, max(s.state_since, s.resumed_at) + nudge.interval_seconds)
    match ladder.level:
        case Level.NUDGED:
            # An agent in an error loop reads no reminders: somebody has to decide.
            speaks = nudge.enabled and s.state is not HealthState.FAILING
            if speaks and ladder.nudges < nudge.max_attempts:
                return ActionKind.NUDGE, rested
            return ActionKind.ESCALATE, rested
        case Level.MORE_TIME:
            return ActionKind.ESCALATE, ladder.until or rested
        case Level.HANDING_OFF if not ladder.told:
            return ActionKind.NUDGE, s.state_since
        case Level.ESCALATED | Level.HANDING_OFF:
            return ActionKind.TERMINATE, until
        case Level.TERMINATING:
            return ActionKind.TERMINATE, s.state_since
        case Level.TERMINATED | Level.RECOVERING | Level.HUMAN:
            return None, 0.0


def _is_surely_silent(worker: WorkerHealth) -> bool:
    return any(f.kind is FindingKind.STALL and f.severity is Severity.CRITICAL for f in worker.findings)


def _progressed(ladder: Ladder, s: Standing) -> bool:
    if ladder.needs_checkpoint and s.checkpoint_is_stale:
        return s.last_checkpoint is not None and s.last_checkpoint > ladder.trouble_since
    if s.last_progress is None:
        return False
    return ladder.progress_before is None or s.last_progress > ladder.progress_before
