"""The share of a worker's recent calls and steps that failed, and whether it is too high."""

from __future__ import annotations

from typing import Final

from queenright.health.vitals.vital_state import VitalState

ERROR_WINDOW: Final = 20
"""The number of calls and steps in the window of the error rate. One failure is 5 %."""
MAX_ERROR_RATE: Final = 0.25
"""The highest error rate that is normal when an agent explores (IMPL-REQ-003)."""
_ERROR_MINIMUM: Final = 8
"""
The minimum number of calls and steps for an error rate. With fewer, a single failure could exceed the limit.
"""
_ERROR_RATE_CLEARS: Final = 0.8
"""The finding clears below this fraction of the limit, so that an error rate near the limit does not flap."""
_NO_FAILURES: Final = 1 << ERROR_WINDOW
"""A full window without a failure."""


def record_outcome(v: VitalState, is_failure: bool, at: float) -> None:
    """Add the outcome of a call or step, and open or clear the finding."""
    if not is_failure and v._outcomes == _NO_FAILURES:
        return  # fast path for the usual case
    outcomes = (v._outcomes << 1) | is_failure
    if outcomes >= 2 * _NO_FAILURES:
        # Keep the leading bit, which counts the outcomes, and drop the oldest outcome.
        outcomes = (outcomes & (_NO_FAILURES - 1)) | _NO_FAILURES
    v._outcomes = outcomes
    failures, total = outcomes.bit_count() - 1, outcomes.bit_length() - 1
    if failures == 0:
        v.error_rate_high = False
        return
    if v.error_rate_high:
        v.error_rate_high = failures >= _ERROR_RATE_CLEARS * MAX_ERROR_RATE * total
    elif total >= _ERROR_MINIMUM and failures > MAX_ERROR_RATE * total:
        v.error_rate_high = True
        v.error_rate_since = at
