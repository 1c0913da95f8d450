"""A rate limit whose end is known is a wait until then."""

from __future__ import annotations

import pytest

from queenright.health.findings import FindingKind, HealthState
from queenright.health.rate_limits import limited_for
from queenright.instrumentation.names import WaitingReason
from queenright.runtime.events import EventType
from queenright.server.views.view import activity_of
from tests.health.test_detectors import worker

STALL = FindingKind.STALL


@pytest.mark.parametrize(
    ("said", "wait"),
    [
        ("Rate limit reached for gpt-5. Please try again in 20s.", 20),
        ("Rate limit reached. Please try again in 1m12.5s.", 72.5),
        ("Rate limit reached. Please try again in 320ms.", 0.32),
        ("429 Too Many Requests, Retry-After: 30", 30),
        ('RESOURCE_EXHAUSTED: quota exceeded, "retryDelay": "x", please retry in 32.5 seconds', 32.5),
        ("Usage limit: rate limit resets in 2h 5m", 7_500),
        ("429 rate_limit_error", None),
        ("Rate limit reached, try again later", None),
        ("Rate limit: retry after 99999999 s", None),
        ("Connection refused, try again in 20s", None),
        ("", None),
    ],
)
def test_the_end_of_a_limit_is_read_from_what_is_said(said: str, wait: float | None) -> None:
    assert limited_for({"error_type": "error", "error": said}) == wait


def test_a_field_says_it_better_than_words() -> None:
    data = {"error_type": "RateLimitError", "error": "try again in 20s", "retry_after": 45.0}

    assert limited_for(data) == 45
    assert limited_for(data | {"error_type": "APIError", "error": "server error"}) is None


def test_rate_limited_until_then_is_a_wait_and_no_failure() -> None:
    """B105: no provider failure, no stall before its end, and a stall if nothing happens after it."""
    script = worker()
    for _ in range(6):
        script.event(EventType.LLM_CALL_STARTED)
        script.event(
            EventType.LLM_CALL_COMPLETED, {"error_type": "RateLimitError", "error": "try again in 30m"}
        )
    vitals = script.health.vitals

    assert (vitals.waiting, vitals.llm_errors) == (WaitingReason.BACKOFF, 0)
    assert vitals.limited_until == script.now + 1_800
    assert activity_of(vitals).startswith("waiting to try again at ")
    script.silence(1_800 + 239)
    assert (script.kinds(), script.state) == (set(), HealthState.HEALTHY)
    script.silence(1)
    assert script.finding(STALL) is not None


def test_work_that_goes_on_ends_the_wait_at_once() -> None:
    """B105: it may have another model."""
    script = worker()
    script.event(EventType.LLM_CALL_STARTED)
    script.event(EventType.LLM_CALL_COMPLETED, {"error_type": "429", "error": "retry after 3600 s"})
    script.event(EventType.LLM_CALL_STARTED)

    assert (script.health.vitals.waiting, script.health.vitals.limited_until) == (None, None)
    script.silence(240)
    assert script.finding(STALL) is not None
