"""Limits on automatic actions in addition to the permit: per worker, and per minute for the fleet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from queenright.health.action_kind import ActionKind
from queenright.health.cluster.fleet import FleetState
from queenright.health.interventions.ladder import Ladder, LadderInputs, Level
from queenright.health.interventions.messages import duration
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.settings import InterventionSettings
from queenright.health.store.store import StoreError
from queenright.health.tickets.ticket_rules import reasons
from queenright.instrumentation.counts import format_count

_BUSY = {
    Level.ESCALATED: "an escalation to the orchestrator is pending",
    Level.MORE_TIME: "the orchestrator gave it more time",
    Level.HANDING_OFF: "it was asked to hand off",
    Level.TERMINATING: "it is being stopped",
    Level.TERMINATED: "it has stopped and will be recovered",
    Level.RECOVERING: "it is being recovered",
    Level.HUMAN: "every automatic action was tried; a person must act",
}


_BUDGET_SECONDS: Final = 60.0
SHARED_ACTIONS: Final = "actions"
"""The name of a value that services share: the times of the interventions of the last minute."""


class ActionBudget:
    """
    Limits the number of interventions per minute across the fleet.

    Args:
        most: The limit.
        fleet: The other services. ``replace`` passes on the times of their interventions.
    """

    def __init__(self, limit: int, fleet: FleetState | None = None) -> None:
        self._limit = limit
        self._fleet = fleet if fleet is not None and fleet.is_shared else None
        self._times: deque[float] = deque()

    @property
    def most(self) -> int:
        """The limit per minute."""
        return self._limit

    def count_used(self, now: float) -> int:
        """Return the number of interventions in the last minute."""
        min_age = 0 if self._fleet is None else -_BUDGET_SECONDS
        while self._times and not min_age <= now - self._times[0] < _BUDGET_SECONDS:
            self._times.popleft()
        return len(self._times)

    def free_at(self, now: float) -> float:
        """Return when the next intervention is allowed: ``now`` or later."""
        return now if self.count_used(now) < self._limit else self._times[0] + _BUDGET_SECONDS

    def spend(self, now: float) -> None:
        """Count an intervention of this service."""
        self._times.append(now)

    async def take(self, now: float, *, force: bool = False) -> bool:
        """
        Count an intervention if the limit allows it, and return whether it does.

        Args:
            force: Count it even above the limit, because a person acts.

        Raises:
            StoreError: The interventions of the other services cannot be read, and ``force`` is false.
        """
        if self._fleet is not None:
            try:
                return await self._take_shared(self._fleet, now, force)
            except StoreError:
                if not force:
                    raise
        is_allowed = force or self.count_used(now) < self._limit
        if is_allowed:
            self.spend(now)
        return is_allowed

    async def _take_shared(self, fleet: FleetState, now: float, force: bool) -> bool:
        is_allowed = False

        def take(times: list[float] | None) -> list[float] | None:
            nonlocal is_allowed
            # The times of other services come from their clocks, which may be ahead.
            recent = sorted(at for at in times or () if abs(now - at) < _BUDGET_SECONDS)
            is_allowed = force or len(recent) < self._limit
            return [*recent, now] if is_allowed else times

        self.replace(await fleet.update(SHARED_ACTIONS, take) or ())
        return is_allowed

    def replace(self, times: Iterable[float]) -> None:
        """Replace the times of interventions with those of the whole fleet."""
        self._times = deque(sorted(times))


def refusal_reason(
    kind: ActionKind,
    worker: WorkerHealth,
    inputs: LadderInputs,
    ladder: Ladder | None,
    settings: InterventionSettings,
    *,
    now: float,
    quiet_until: float,
    budget: ActionBudget,
    is_recovering: bool,
) -> str | None:
    """
    Return why only a person may act on a worker now, or None.

    At most one action per interval is allowed, including the actions of people, and at most as many nudges as
    the ladder allows.

    Args:
        kind: A nudge or a termination.
        quiet_until: No automatic action is allowed before this time (seconds since the epoch).
        is_recovering: Whether the worker is being recovered, or is watched closely after a recovery.
    """
    if not settings.enabled or (kind is ActionKind.NUDGE and not settings.nudge.enabled):
        return "the settings allow only people to do this; ask the operator"
    if inputs.is_provider_at_fault:
        return "its model provider fails; no action on the worker would help"
    if inputs.is_unknown:
        return "only its heartbeats are known, not what it does"
    if not reasons(worker):
        return "it has no findings now"
    if inputs.is_given_up:
        return "its recovery was abandoned; a person must act"
    if is_recovering:
        return "it is being recovered, or is watched closely after a recovery"
    if ladder is not None and ladder.level in _BUSY:
        return _BUSY[ladder.level]
    if kind is ActionKind.NUDGE and ladder is not None and ladder.nudges >= settings.nudge.max_attempts:
        return f"it was nudged {format_count(ladder.nudges, 'time')} already, which is the limit"
    return _describe_rate_limit(inputs, ladder, settings, now, quiet_until, budget)


def _describe_rate_limit(
    inputs: LadderInputs,
    ladder: Ladder | None,
    settings: InterventionSettings,
    now: float,
    quiet_until: float,
    budget: ActionBudget,
) -> str | None:
    acted_at = ladder.acted_at if ladder is not None else None
    free_at = 0.0 if acted_at is None else acted_at + settings.nudge.interval_seconds
    if acted_at is not None and now < free_at:
        last_action = f"the last action was {duration(now - acted_at)} ago"
        return f"{last_action}; not before {_format_clock_time(free_at)}"
    free_at = max(quiet_until, inputs.grace_until)
    if now < free_at:
        return f"no action so soon after a start; not before {_format_clock_time(free_at)}"
    free_at = budget.free_at(now)
    if now < free_at:
        return f"{budget.most} interventions a minute are the limit; not before {_format_clock_time(free_at)}"
    return None


def _format_clock_time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC"
