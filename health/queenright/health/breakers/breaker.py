"""
The state machine of a circuit breaker. It has no clock: the time is an argument, in seconds from anywhere,
on a clock that is never set.

Closed, calls pass, and so many failures in a row open it. Open, none passes, until the recovery time-out is
over. Half open, a few probes pass: the first that succeeds closes it, the first that fails opens it again.
A probe that is heard of no more does not hold its place for ever: another takes it after one more time-out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from queenright.health.settings import Breaker


class BreakerState(StrEnum):
    """Whether calls pass."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


FOLLOWS: Final = {
    BreakerState.CLOSED: frozenset({BreakerState.OPEN}),
    BreakerState.OPEN: frozenset({BreakerState.HALF_OPEN, BreakerState.CLOSED}),
    BreakerState.HALF_OPEN: frozenset({BreakerState.OPEN, BreakerState.CLOSED}),
}
"""What may follow what; an open one is closed by hand only."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave for one call, given in one life of a state: of what is over, its outcome says nothing."""

    era: int
    number: int


class BreakerMachine:
    """
    The state of one breaker. Not for several threads at once: ``CircuitBreaker`` sees to that.

    Args:
        policy: How many failures open it, for how long, and how many probes there are.
    """

    __slots__ = ("_era", "_number", "_opened_at", "_probes", "failures", "policy", "reason", "state")

    def __init__(self, policy: Breaker) -> None:
        self.policy = policy
        self.state = BreakerState.CLOSED
        self.failures = 0
        """Failures in a row."""
        self.reason = ""
        """Why it is in this state."""
        self._opened_at = 0.0
        self._era = 0
        self._number = 0
        self._probes: dict[int, float] = {}

    def admits(self, now: float) -> bool:
        """Whether ``admit`` would give leave; changes nothing."""
        return self.refused_for(now) is None

    def refused_for(self, now: float) -> float | None:
        """Return after how many seconds it is worth asking for leave; None where there is some now."""
        if self.state is BreakerState.CLOSED:
            return None
        if self.state is BreakerState.OPEN:
            left = self.open_for(now)
            return left if left > 0 else None
        live = [since for since in self._probes.values() if self._left(since, now) > 0]
        if len(live) < self.policy.half_open_requests:
            return None
        return min(self._left(since, now) for since in live)

    def open_for(self, now: float) -> float:
        """Return for how many seconds more no call passes: between 0 and the recovery time-out."""
        return self._left(self._opened_at, now) if self.state is BreakerState.OPEN else 0.0

    def admit(self, now: float) -> Leave | None:
        """Give leave for one call, or None."""
        if self.refused_for(now) is not None:
            return None
        self.wake(now)
        self._number += 1
        if self.state is BreakerState.HALF_OPEN:
            for number in [n for n, since in self._probes.items() if self._left(since, now) <= 0]:
                del self._probes[number]
            self._probes[self._number] = now
        return Leave(self._era, self._number)

    def wake(self, now: float) -> bool:
        """Let an open breaker whose time is over be half open; return whether it was one."""
        if self.state is not BreakerState.OPEN or self.open_for(now) > 0:
            return False
        self._turn(BreakerState.HALF_OPEN, "its recovery time is over; the next call is a probe")
        return True

    def succeeded(self, leave: Leave) -> None:
        """Take in that a call went well."""
        if leave.era != self._era:
            return
        self.failures = 0
        if self.state is BreakerState.HALF_OPEN:
            self._turn(BreakerState.CLOSED, "a probe succeeded")

    def failed(self, leave: Leave, now: float, reason: str) -> None:
        """Take in that a call failed, and why."""
        if leave.era != self._era:
            return
        self.failures += 1
        if self.state is BreakerState.HALF_OPEN:
            self._open(now, f"a probe failed: {reason}")
        elif self.failures >= self.policy.failure_threshold:
            row = "1 failure" if self.failures == 1 else f"{self.failures} failures in a row, the last"
            self._open(now, f"{row}: {reason}")

    def given_back(self, leave: Leave) -> None:
        """Take in that a call ended without telling anything: its place is free again."""
        if leave.era == self._era:
            self._probes.pop(leave.number, None)

    def reset(self, reason: str) -> bool:
        """
        Close it, as new, and return whether it was not closed.

        How calls go that are under way is not heard any more.
        """
        before = self.state
        self.failures = 0
        self._turn(BreakerState.CLOSED, reason if before is not BreakerState.CLOSED else "")
        return before is not BreakerState.CLOSED

    def restore(
        self, state: BreakerState, *, failures: int, reason: str, open_for: float, now: float
    ) -> None:
        """
        Be as another process left it.

        Args:
            state: The state.
            failures: Failures in a row.
            reason: Why.
            open_for: For how many seconds more it is open; never for more than a whole time-out.
            now: The time.
        """
        self.failures = max(0, failures)
        self._turn(state, reason)
        whole = self.policy.recovery_timeout_seconds
        self._opened_at = now - (whole - min(max(open_for, 0.0), whole))

    def _open(self, now: float, reason: str) -> None:
        self._opened_at = now
        self._turn(BreakerState.OPEN, reason)

    def _turn(self, state: BreakerState, reason: str) -> None:
        self.state, self.reason = state, reason
        self._era += 1
        self._probes.clear()

    def _left(self, since: float, now: float) -> float:
        """Return what is left of a time-out that began at ``since``: never negative, never more than all."""
        whole = self.policy.recovery_timeout_seconds
        return min(max(since + whole - now, 0.0), whole)
