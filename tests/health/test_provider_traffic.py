"""The health of providers, according to the fleet's own calls."""

from __future__ import annotations

from typing import Any

import pytest

from queenright.health.vitals.provider_traffic import WINDOW, ProviderHealth, ProviderTraffic
from queenright.runtime.events import AgentEvent, EventType

NOW = 1_000_000.0


class Calls:
    """A sequence of calls of one model."""

    def __init__(self) -> None:
        self.traffic = ProviderTraffic()
        self.now = NOW

    def call(self, times: int = 1, *, agent: str = "bee", after: float = 1.0, **data: Any) -> None:
        for _ in range(times):
            self.now += after
            event = AgentEvent(
                type=EventType.LLM_CALL_COMPLETED,
                time=self.now,
                agent_id=agent,
                session_id="s",
                data={"provider": "anthropic", "model": "claude", **data},
            )
            self.traffic.note(event, self.now)

    def found(self) -> ProviderHealth:
        [provider_health] = self.traffic.providers(self.now)
        return provider_health


@pytest.mark.parametrize(
    ("good", "bad", "status"),
    [
        (9, 0, "ok"),
        (19, 1, "ok"),
        (9, 1, "degraded"),
        (3, 2, "degraded"),
        (3, 3, "failing"),
        (0, 2, "degraded"),
    ],
)
def test_status_is_the_share_that_fails(good: int, bad: int, status: str) -> None:
    calls = Calls()
    calls.call(good, duration=2.0)
    calls.call(bad, error_type="overloaded_error")

    provider_health = calls.found()
    assert provider_health.status == status
    assert (provider_health.calls, provider_health.failed) == (good + bad, bad)
    assert provider_health.errors == ((("overloaded_error", bad),) if bad else ())


def test_provider_whose_newest_calls_succeed_does_not_fail() -> None:
    calls = Calls()
    for _ in range(12):
        for n in range(10):
            calls.call(agent=f"bee{n}", after=0.3, error_type="overloaded_error")
    failing = calls.found()
    calls.now += 30
    for _ in range(12):
        for n in range(10):
            calls.call(agent=f"bee{n}", after=0.5)

    recovered = calls.found()
    assert (failing.status, failing.agents_failing) == ("failing", 10)
    assert (recovered.status, recovered.agents_failing) == ("ok", 0)
    assert (recovered.calls, recovered.failed) == (240, 120)


def test_provider_whose_newest_calls_fail_fails_after_many_successes() -> None:
    calls = Calls()
    calls.call(200, after=1.0)
    calls.call(20, after=2.0, error_type="overloaded_error")

    assert calls.found().status == "failing"


def test_one_agent_that_fails_among_others_that_are_answered_leaves_its_provider_ok_or_degraded() -> None:
    calls = Calls()
    for _ in range(20):
        calls.call(agent="courier", error_type="overloaded_error")
        calls.call(4, agent="librarian")

    assert calls.found().status == "degraded"


def test_old_calls_do_not_count_and_idle_providers_disappear() -> None:
    calls = Calls()
    calls.call(5, error_type="overloaded")
    calls.now += WINDOW
    silent = calls.found()
    calls.now += 3_600
    assert (silent.status, silent.calls) == ("unknown", 0)
    assert silent.last_failure == NOW + 5
    assert calls.traffic.providers(calls.now) == []


def test_rate_limit_with_an_end_is_a_wait_until_then_or_a_success() -> None:
    """B105"""
    calls = Calls()
    calls.call(error_type="rate_limit_error", retry_after=90)
    limited = calls.found()
    calls.now += 90
    over = calls.found()
    calls.call(error_type="rate_limit_error", retry_after=90)
    calls.call()

    assert (limited.status, limited.limited_until) == ("limited", NOW + 91)
    assert (over.status, over.limited_until) == ("degraded", None)
    assert calls.found().limited_until is None


def test_latency_covers_successful_calls() -> None:
    calls = Calls()
    for n in range(1, 101):
        calls.call(duration=float(n))
    calls.call(duration=900.0, error_type="timeout")

    provider_health = calls.found()
    assert (provider_health.seconds_p50, provider_health.seconds_p95) == (51.0, 96.0)


def test_failing_agents_are_those_whose_last_call_failed() -> None:
    calls = Calls()
    calls.call(agent="a", error_type="overloaded")
    calls.call(agent="b", error_type="overloaded")
    calls.call(agent="b")

    assert calls.found().agents_failing == 1


@pytest.mark.parametrize(
    "data",
    [
        {"error_type": "APIUserAbortError"},
        {"provider": "", "model": ""},
        {"amends": True, "error_type": "overloaded"},
        {"agent": ""},
    ],
)
def test_calls_without_provider_information_are_ignored(data: dict[str, Any]) -> None:
    calls = Calls()
    calls.call(**data)

    assert calls.traffic.providers(calls.now) == []


def test_tracked_models_are_bounded() -> None:
    calls = Calls()
    for n in range(300):
        calls.call(model=f"m{n}", after=0.0)

    assert len(calls.traffic.providers(calls.now)) == 200


def test_all_calls_and_agents_of_ten_minutes_count_however_many() -> None:
    """B104: every agent of a large fleet counts."""
    calls = Calls()
    for n in range(2_000):
        calls.call(agent=f"bee-{n}", after=0.1, error_type="overloaded")
    all_fail = calls.found()
    for n in range(500):
        calls.call(agent=f"bee-{n}", after=0.0)
    some_fail = calls.found()
    calls.now += WINDOW
    silent = calls.found()

    assert (all_fail.calls, all_fail.failed, all_fail.agents_failing) == (2_000, 2_000, 2_000)
    assert (some_fail.calls, some_fail.failed, some_fail.agents_failing) == (2_500, 2_000, 1_500)
    assert (silent.calls, silent.agents_failing) == (0, 0)


def test_late_call_does_not_count_as_its_agents_last() -> None:
    calls = Calls()
    calls.call(2)
    calls.call(after=-1.0, error_type="overloaded")
    calls.now += 1

    provider_health = calls.found()
    assert (provider_health.failed, provider_health.agents_failing) == (1, 0)
