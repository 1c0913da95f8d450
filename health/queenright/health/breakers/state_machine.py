"""
State machine of a circuit breaker. Time is an argument, on a monotonic clock.

Closed: calls pass, and a number of consecutive failures opens the breaker. Open: no call passes until the
recovery timeout is over. Half-open: a few probes pass. The first success closes it, the first failure opens
it again. If a probe reports no outcome within another timeout, a new probe may replace it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from queenright.health.settings import BreakerSettings


class BreakerState(StrEnum):
    """The state of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class Admission:
    """Admits one call. Its outcome is ignored if the state has changed since."""

    generation: int
    number: int


class BreakerMachine:
    """
    The state of one breaker. Not thread-safe: ``CircuitBreaker`` locks it.

    Args:
        policy: How many failures open it, for how long, and the number of probes.
    """

    __slots__ = ("_generation", "_number", "_opened_at", "_probes", "failures", "policy", "reason", "state")

    def __init__(self, policy: BreakerSettings) -> None:
        self.policy = policy
        self.state = BreakerState.CLOSED
        self.failures = 0
        """Consecutive failures."""
        self.reason = ""
        """Why it is in this state."""
        self._opened_at = 0.0
        self._generation = 0
        self._number = 0
        self._probes: dict[int, float] = {}

    def retry_in(self, now: float) -> float | None:
        """Return the seconds until a retry makes sense, or None if a call is allowed now."""
        if self.state is BreakerState.CLOSED:
            return None
        if self.state is BreakerState.OPEN:
            remaining = self.open_for(now)
            return remaining if remaining > 0 else None
        live_probes = [since for since in self._probes.values() if self._remaining(since, now) > 0]
        if len(live_probes) < self.policy.half_open_requests:
            return None
        return min(self._remaining(since, now) for since in live_probes)

    def open_for(self, now: float) -> float:
        """Return the remaining seconds until it half-opens: between 0 and the recovery timeout."""
        return self._remaining(self._opened_at, now) if self.state is BreakerState.OPEN else 0.0

    def admit(self, now: float) -> Admission | None:
        """Admit one call, or return None if the breaker refuses."""
        if self.retry_in(now) is not None:
            return None
        self.half_open_if_due(now)
        self._number += 1
        if self.state is BreakerState.HALF_OPEN:
            for number in [n for n, since in self._probes.items() if self._remaining(since, now) <= 0]:
                del self._probes[number]
            self._probes[self._number] = now
        return Admission(self._generation, self._number)

    def half_open_if_due(self, now: float) -> bool:
        """Make an open breaker half-open if its timeout has passed, and return whether it did."""
        if self.state is not BreakerState.OPEN or self.open_for(now) > 0:
            return False
        self._set_state(BreakerState.HALF_OPEN, "its recovery timeout is over; the next call is a probe")
        return True

    def record_success(self, admission: Admission) -> None:
        """Record a successful call."""
        if admission.generation != self._generation:
            return
        self.failures = 0
        if self.state is BreakerState.HALF_OPEN:
            self._set_state(BreakerState.CLOSED, "a probe succeeded")

    def record_failure(self, admission: Admission, now: float, reason: str) -> None:
        """Record a failed call and its reason."""
        if admission.generation != self._generation:
            return
        self.failures += 1
        if self.state is BreakerState.HALF_OPEN:
            self._open(now, f"a probe failed: {reason}")
        elif self.failures >= self.policy.failure_threshold:
            prefix = "1 failure" if self.failures == 1 else f"{self.failures} failures in a row, the last"
            self._open(now, f"{prefix}: {reason}")

    def release(self, admission: Admission) -> None:
        """Record a call without an outcome, and free its probe slot."""
        if admission.generation == self._generation:
            self._probes.pop(admission.number, None)

    def reset(self, reason: str) -> bool:
        """
        Close the breaker and clear its failures. Return whether it was open or half-open.

        Outcomes of calls in progress are ignored.
        """
        before = self.state
        self.failures = 0
        self._set_state(BreakerState.CLOSED, reason if before is not BreakerState.CLOSED else "")
        return before is not BreakerState.CLOSED

    def restore(
        self, state: BreakerState, *, failures: int, reason: str, open_for: float, now: float
    ) -> None:
        """
        Restore the state that a former process saved.

        Args:
            open_for: The remaining seconds until it half-opens; at most the whole timeout.
        """
        self.failures = max(0, failures)
        self._set_state(state, reason)
        timeout = self.policy.recovery_timeout_seconds
        self._opened_at = now - (timeout - min(max(open_for, 0.0), timeout))

    def _open(self, now: float, reason: str) -> None:
        self._opened_at = now
        self._set_state(BreakerState.OPEN, reason)

    def _set_state(self, state: BreakerState, reason: str) -> None:
        self.state, self.reason = state, reason
        self._generation += 1
        self._probes.clear()

    def _remaining(self, since: float, now: float) -> float:
        """Return the seconds left of a timeout that began at ``since``: between 0 and the whole timeout."""
        timeout = self.policy.recovery_timeout_seconds
        return min(max(since + timeout - now, 0.0), timeout)
