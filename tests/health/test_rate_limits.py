"""A worker waits until the end of a rate limit, if the end is known."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import FindingKind
from queenright.health.vitals.rate_limits import parse_rate_limit_seconds
from queenright.instrumentation.names import WaitingReason
from queenright.runtime.events import EventType
from queenright.server.views.worker_rows import describe_activity
from tests.health.test_detectors import start_worker
from tests.health.worker_script import WorkerScript

STALL = FindingKind.STALL
NOON = datetime(2026, 11, 25, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("error", "wait"),
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
        ("429 Too Many Requests\nretry-after-ms: 1500", 1.5),
        ('{"error": {"code": 429, "details": [{"@type": "RetryInfo", "retryDelay": "34s"}]}}', 34),
        ('{\\"status\\": \\"RESOURCE_EXHAUSTED\\", \\"retryDelay\\": \\"34.5s\\"}', 34.5),
        ("429 rate limit, x-ratelimit-reset-tokens: 6m0s", 360),
        ("429 rate limit, x-ratelimit-remaining-tokens: 0", None),
        ("RateLimitError: retry-after: Wed, 25 Nov 2026 12:00:30 GMT", 30),
        ("429, anthropic-ratelimit-requests-reset: 2026-11-25T12:05:00Z", 300),
        ("Claude AI usage limit reached|1795608900", 900),
        ("429 rate limit, x-ratelimit-reset: 1795608060", 60),
        ("You've hit your limit \u00b7 resets 3pm (Europe/Berlin)", 7_200),
        ("You've hit your limit \u00b7 resets 1:30pm (UTC)", 5_400),
        ("You have hit your usage limit. Try again in 3 hours 4 minutes.", 11_040),
        ("Rate limit exceeded. Please wait for 10 seconds.", 10),
        ("You've hit your usage limit. Try again in 2 days.", 172_800),
        ("Usage limit reached, try again in 3 days 4 hours", 273_600),
        ("429 Too Many Requests, retry-after: 20.", 20),
        ("429, retry-after: 20.5.", 20.5),
        ("429, x-ratelimit-reset-after: 20", 20),
        ("Usage limit reached. It resets in 1h 20m.", 4_800),
        ("usage limit reached, in 1h 20m it is over", None),
        ("Your rate limit will reset at 15:00 UTC", 10_800),
        ("Quota exceeded, resets on 2026-11-25 12:10:00 UTC", 600),
        ("Usage limit reached, resets tomorrow at 9am (UTC)", 75_600),
        ("Weekly limit reached \u00b7 resets Nov 28 at 3pm (UTC)", 270_000),
        ("Weekly limit reached, resets Nov 26, 9am (Europe/Berlin)", 72_000),
        ("Weekly limit reached, resets Tuesday at 12pm (UTC)", 518_400),
        ("Weekly limit reached, resets Wednesday 11am (UTC)", 601_200),
        ("Monthly limit: rate limit resets Dec 25 at 3pm (UTC)", None),
        ("Rate limit resets Feb 30 at 3pm (UTC)", None),
        ("Rate limit resets monthly", None),
        ("Rate limit resets at 25:00", None),
        ("ThrottlingException: Too many tokens, please wait before trying again.", None),
        ("rate limit of 30 requests per 60 seconds exceeded", None),
        ("Connection refused, try again in 20s", None),
        ("", None),
    ],
)
def test_end_of_a_rate_limit_is_parsed(error: str, wait: float | None) -> None:
    assert parse_rate_limit_seconds({"error_type": "error", "error": error}, NOON) == wait


def test_structured_field_precedes_text() -> None:
    data = {"error_type": "RateLimitError", "error": "try again in 20s", "retry_after": 45.0}

    assert parse_rate_limit_seconds(data, NOON) == 45
    assert parse_rate_limit_seconds(data | {"error_type": "APIError", "error": "server error"}, NOON) is None


def test_rate_limited_worker_waits_until_the_limit_ends() -> None:
    """
    B105: the limit is not a provider failure, and the worker stalls only if nothing happens after it ends.
    """
    script = start_worker()
    for _ in range(6):
        script.report_event(EventType.LLM_CALL_STARTED)
        script.report_event(
            EventType.LLM_CALL_COMPLETED, {"error_type": "RateLimitError", "error": "try again in 30m"}
        )
    vitals = script.health.vitals

    assert (vitals.waiting, vitals.llm_errors) == (WaitingReason.BACKOFF, 0)
    assert vitals.limited_until == script.now + 1_800
    assert describe_activity(vitals) == ("waiting", "waiting to try again")
    script.stay_silent(1_800 + 239)
    assert (script.list_finding_kinds(), script.state) == (set(), HealthState.HEALTHY)
    script.stay_silent(1)
    assert script.get_finding(STALL) is not None


@pytest.mark.parametrize("start_records", [True, False])
def test_step_that_fails_during_a_rate_limit_is_not_a_failure(start_records: bool) -> None:
    """B105: the step fails with its call, and the worker still waits."""
    script = start_worker() if start_records else WorkerScript()
    error: dict[str, Any] = {
        "error_type": "RateLimitError",
        "error": "429 Too Many Requests, try again in 90s",
    }
    for _ in range(5):
        if start_records:
            script.report_event(EventType.STEP_STARTED)
            script.report_event(EventType.LLM_CALL_STARTED)
        script.report_event(EventType.LLM_CALL_COMPLETED, error)
        script.report_step(**error)
    vitals = script.health.vitals

    assert (vitals.waiting, vitals.consecutive_failures) == (WaitingReason.BACKOFF, 0)
    assert (vitals.steps_since_last_accept, vitals.error_share) == (0, 0)
    assert (script.list_finding_kinds(), script.state) == (set(), HealthState.HEALTHY)


def test_step_that_fails_after_a_rate_limit_is_a_failure() -> None:
    script = WorkerScript()
    script.report_event(EventType.LLM_CALL_COMPLETED, {"error_type": "429", "error": "retry after 5 s"})
    script.report_step(error_type="ValueError", after=6.0)

    assert (script.health.vitals.waiting, script.health.vitals.consecutive_failures) == (None, 1)


def test_work_ends_the_wait_at_once() -> None:
    """B105: the worker may have switched to another model."""
    script = start_worker()
    script.report_event(EventType.LLM_CALL_STARTED)
    script.report_event(EventType.LLM_CALL_COMPLETED, {"error_type": "429", "error": "retry after 3600 s"})
    script.report_event(EventType.LLM_CALL_STARTED)

    assert (script.health.vitals.waiting, script.health.vitals.limited_until) == (None, None)
    script.stay_silent(240)
    assert script.get_finding(STALL) is not None


def report_refusals(script: WorkerScript, seconds: int, *, retry_seconds: float) -> None:
    """Report a refused call every few seconds, each with a retry time."""
    for _ in range(seconds // 20):
        script.report_event(EventType.LLM_CALL_STARTED)
        script.report_event(
            EventType.LLM_CALL_COMPLETED,
            {"error_type": "RateLimitError", "error": f"try again in {retry_seconds}s"},
        )
        script.stay_silent(20)


def test_limits_that_outlive_their_retry_time_are_a_provider_failure() -> None:
    """B105: after 15 minutes of expired retry times, the worker no longer counts as waiting."""
    script = start_worker()
    report_refusals(script, 14 * 60, retry_seconds=1)
    before = script.get_finding(FindingKind.PROVIDER_FAILURE)
    report_refusals(script, 5 * 60, retry_seconds=1)

    assert before is None
    assert script.get_finding(FindingKind.PROVIDER_FAILURE) is not None


def test_refusal_before_the_retry_time_is_not_a_failure() -> None:
    """B105: a client that retries too early is refused again; the limit still ends on time."""
    script = start_worker()
    for remaining_seconds in range(3_600, 0, -60):
        script.report_event(EventType.LLM_CALL_STARTED)
        script.report_event(
            EventType.LLM_CALL_COMPLETED, {"error_type": "429", "error": f"try again in {remaining_seconds}s"}
        )
        script.stay_silent(59)

    assert script.list_finding_kinds() == set()


@pytest.mark.parametrize(("interval_seconds", "retry_seconds"), [(20, 21), (3_600, 7_200)])
def test_repeatedly_extended_rate_limit_is_a_provider_failure(
    interval_seconds: int, retry_seconds: int
) -> None:
    """B105: the wait ends at the retry time of the first refusal; later refusals do not extend it."""
    script = start_worker()
    for _ in range(3 * retry_seconds // interval_seconds + 60):
        script.report_event(EventType.LLM_CALL_STARTED)
        script.report_event(
            EventType.LLM_CALL_COMPLETED, {"error_type": "429", "error": f"try again in {retry_seconds}s"}
        )
        script.stay_silent(interval_seconds)

    assert script.get_finding(FindingKind.PROVIDER_FAILURE) is not None


@pytest.mark.parametrize(("reset", "days"), [("Tuesday", 6), ("Nov 28", 3), ("thu", 1), ("Wednesday", 7)])
def test_day_without_a_time_begins_at_midnight(reset: str, days: int) -> None:
    midnight = datetime.fromtimestamp(NOON).astimezone().replace(hour=0)
    wait = parse_rate_limit_seconds({"error_type": "429", "error": f"weekly limit, resets {reset}"}, NOON)

    assert wait == (midnight + timedelta(days=days)).timestamp() - NOON


@pytest.mark.parametrize("at", [float("nan"), 1e15, -1e15, 1_774_000_000_000.0])
def test_invalid_event_time_gives_no_wait(at: float) -> None:
    assert parse_rate_limit_seconds({"error_type": "429", "error": "resets 3pm"}, at) is None


def test_long_white_space_is_parsed_in_linear_time() -> None:
    """A pattern that backtracks over whitespace takes hours for these texts."""
    for blank in ("reset" + " \n" * 100_000 + "in 5s", "reset-" * 100_000, "resets nov " * 100_000):
        assert parse_rate_limit_seconds({"error_type": "429", "error": blank}, NOON) is None


def test_successful_call_resets_the_retry_time() -> None:
    script = start_worker()
    for _ in range(4):
        report_refusals(script, 10 * 60, retry_seconds=1)
        script.report_event(EventType.LLM_CALL_STARTED)
        script.report_event(EventType.LLM_CALL_COMPLETED, {"output_tokens": 10})

    assert script.get_finding(FindingKind.PROVIDER_FAILURE) is None
