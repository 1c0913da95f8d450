"""Limits: why somebody who is no person must not act on a worker now, past what the permit asks. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

from queenright.health.interventions.ladder import Ladder, Level, Standing
from queenright.health.interventions.messages import duration
from queenright.health.interventions.storm import ActionBudget
from queenright.health.interventions.target import ActionKind
from queenright.health.monitor import WorkerHealth
from queenright.health.settings import Intervention
from queenright.health.ticket_rules import reasons

_BUSY = {
    Level.ESCALATED: "the orchestrator is asked what is to become of it; its answer comes first",
    Level.MORE_TIME: "the orchestrator has given it more time",
    Level.HANDING_OFF: "it has been told to hand off",
    Level.TERMINATING: "it is being stopped",
    Level.TERMINATED: "it has stopped, and is to be brought back",
    Level.RECOVERING: "it is being brought back",
    Level.HUMAN: "all that can be done by itself has been done; a person has to look",
}


def held_back(
    kind: ActionKind,
    worker: WorkerHealth,
    standing: Standing,
    ladder: Ladder | None,
    settings: Intervention,
    *,
    now: float,
    quiet_until: float,
    budget: ActionBudget,
    in_hand: bool,
) -> str | None:
    """
    Return why nothing is done about a worker now but by a person, and the way out; None if it may be.

    At most one action a worker and interval, whoever did the last one; no more nudges than the ladder has.

    Args:
        kind: A nudge, or a termination.
        worker: The worker as it is now.
        standing: The same, as the ladder sees it.
        ladder: How far the ladder of this very life was climbed; None: on the ground.
        settings: The ladder's.
        now: Seconds since the epoch.
        quiet_until: Before that nothing is done by itself.
        budget: How many interventions may be done over the whole fleet.
        in_hand: Whether it is being brought back, or watched closely since.
    """
    if not settings.enabled or (kind is ActionKind.NUDGE and not settings.nudge.enabled):
        return "the settings let only people do this; tell the operator"
    if standing.provider_at_fault:
        return "its model's provider fails: that is not its fault, and nothing done to it would help"
    if standing.unknown:
        return "it is known by heartbeats only: what it is at, nobody knows"
    if not reasons(worker):
        return "nothing is wrong with it now"
    if standing.given_up:
        return "its recovery was given up; a person has to look"
    if in_hand:
        return "it is being brought back, and watched closely"
    if ladder is not None and ladder.level in _BUSY:
        return _BUSY[ladder.level]
    if kind is ActionKind.NUDGE and ladder is not None and ladder.nudges >= settings.nudge.max_attempts:
        return f"it was nudged {ladder.nudges} times already; another one is no help"
    return _too_soon(standing, ladder, settings, now, quiet_until, budget)


def _too_soon(
    standing: Standing,
    ladder: Ladder | None,
    settings: Intervention,
    now: float,
    quiet_until: float,
    budget: ActionBudget,
) -> str | None:
    acted_at = ladder.acted_at if ladder is not None else None
    free_at = 0.0 if acted_at is None else acted_at + settings.nudge.interval_seconds
    if acted_at is not None and now < free_at:
        then = f"something was done about it {duration(now - acted_at)} ago, and it is to have its time"
        return f"{then}; not before {_clock_time(free_at)}"
    free_at = max(quiet_until, standing.grace_until)
    if now < free_at:
        return f"nothing is done so soon after a start; not before {_clock_time(free_at)}"
    free_at = budget.free_at(now)
    if now < free_at:
        return f"{budget.most} interventions a minute are used up; not before {_clock_time(free_at)}"
    return None


def _clock_time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC"
