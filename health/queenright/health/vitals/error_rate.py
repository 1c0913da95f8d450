"""The share of a worker's recent calls and steps that failed, and whether it is too high."""

from __future__ import annotations

from typing import Final

from queenright.health.vitals.vital_state import VitalState

ERROR_WINDOW: Final = 20
"""Window of calls and steps for the error rate; one failure is 5 %."""
MAX_ERROR_RATE: Final = 0.25
"""A larger share is more than exploration (IMPL-REQ-003)."""
_ERROR_MINIMUM: Final = 8
"""Minimum calls and steps for the error rate; with fewer, a single failure could exceed any limit."""
_ERROR_RATE_CLEARS: Final = 0.8
"""The finding clears below this part of its limit, so that a share at the limit does not flap."""
_ALL_WELL: Final = 1 << ERROR_WINDOW
"""A full window without a failure."""


def record_outcome(v: VitalState, is_failure: bool, at: float) -> None:
    """Add the outcome of a call or step, and open or clear the finding."""
    if not is_failure and v._outcomes == _ALL_WELL:
        return  # the usual case
    outcomes = (v._outcomes << 1) | is_failure
    if outcomes >= 2 * _ALL_WELL:
        # Keep the leading bit, which counts the outcomes, and drop the oldest outcome.
        outcomes = (outcomes & (_ALL_WELL - 1)) | _ALL_WELL
    v._outcomes = outcomes
    failures, of = outcomes.bit_count() - 1, outcomes.bit_length() - 1
    if failures == 0:
        v.error_rate_high = False
        return
    if v.error_rate_high:
        v.error_rate_high = failures >= _ERROR_RATE_CLEARS * MAX_ERROR_RATE * of
    elif of >= _ERROR_MINIMUM and failures > MAX_ERROR_RATE * of:
        v.error_rate_high = True
        v.error_rate_since = at
