"""The health of providers, according to the fleet's own calls."""

from __future__ import annotations

from typing import Any

import pytest

from queenright.health.vitals.provider_traffic import WINDOW, ProviderHealth, ProviderTraffic
from queenright.runtime.events import AgentEvent, EventType

NOW = 1_000_000.0


class ModelCalls:
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

    def get_health(self) -> ProviderHealth:
        [provider_health] = self.traffic.providers(self.now)
        return provider_health


@pytest.mark.parametrize(
    ("success_count", "failure_count", "status"),
    [
        (9, 0, "ok"),
        (19, 1, "ok"),
        (9, 1, "degraded"),
        (3, 2, "degraded"),
        (3, 3, "failing"),
        (0, 2, "degraded"),
    ],
)
def test_status_is_the_share_that_fails(success_count: int, failure_count: int, status: str) -> None:
    calls = ModelCalls()
    calls.call(success_count, duration=2.0)
    calls.call(failure_count, error_type="overloaded_error")

    provider_health = calls.get_health()
    assert provider_health.status == status
    assert (provider_health.calls, provider_health.failed) == (success_count + failure_count, failure_count)
    assert provider_health.errors == ((("overloaded_error", failure_count),) if failure_count else ())


def test_provider_whose_newest_calls_succeed_does_not_fail() -> None:
    calls = ModelCalls()
    for _ in range(12):
        for n in range(10):
            calls.call(agent=f"bee{n}", after=0.3, error_type="overloaded_error")
    health_while_failing = calls.get_health()
    calls.now += 30
    for _ in range(12):
        for n in range(10):
            calls.call(agent=f"bee{n}", after=0.5)

    health_after_success = calls.get_health()
    assert (health_while_failing.status, health_while_failing.agents_failing) == ("failing", 10)
    assert (health_after_success.status, health_after_success.agents_failing) == ("ok", 0)
    assert (health_after_success.calls, health_after_success.failed) == (240, 120)


def test_provider_whose_newest_calls_fail_fails_after_many_successes() -> None:
    calls = ModelCalls()
    calls.call(200, after=1.0)
    calls.call(20, after=2.0, error_type="overloaded_error")

    assert calls.get_health().status == "failing"


def test_provider_with_one_failing_agent_among_many_is_ok_or_degraded() -> None:
    calls = ModelCalls()
    for _ in range(20):
        calls.call(agent="courier", error_type="overloaded_error")
        calls.call(4, agent="librarian")

    assert calls.get_health().status == "degraded"


def test_old_calls_do_not_count_and_idle_providers_disappear() -> None:
    calls = ModelCalls()
    calls.call(5, error_type="overloaded")
    calls.now += WINDOW
    idle_health = calls.get_health()
    calls.now += 3_600
    assert (idle_health.status, idle_health.calls) == ("unknown", 0)
    assert idle_health.last_failure == NOW + 5
    assert calls.traffic.providers(calls.now) == []


def test_rate_limit_with_an_end_is_a_wait_until_then_or_a_success() -> None:
    """B105."""
    calls = ModelCalls()
    calls.call(error_type="rate_limit_error", retry_after=90)
    limited_health = calls.get_health()
    calls.now += 90
    health_after_limit = calls.get_health()
    calls.call(error_type="rate_limit_error", retry_after=90)
    calls.call()

    assert (limited_health.status, limited_health.limited_until) == ("limited", NOW + 91)
    assert (health_after_limit.status, health_after_limit.limited_until) == ("degraded", None)
    assert calls.get_health().limited_until is None


def test_latency_covers_successful_calls() -> None:
    calls = ModelCalls()
    for n in range(1, 101):
        calls.call(duration=float(n))
    calls.call(duration=900.0, error_type="timeout")

    provider_health = calls.get_health()
    assert (provider_health.seconds_p50, provider_health.seconds_p95) == (51.0, 96.0)


def test_failing_agents_are_those_whose_last_call_failed() -> None:
    calls = ModelCalls()
    calls.call(agent="a", error_type="overloaded")
    calls.call(agent="b", error_type="overloaded")
    calls.call(agent="b")

    assert calls.get_health().agents_failing == 1


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
    calls = ModelCalls()
    calls.call(**data)

    assert calls.traffic.providers(calls.now) == []


def test_tracked_models_are_bounded() -> None:
    calls = ModelCalls()
    for n in range(300):
        calls.call(model=f"m{n}", after=0.0)

    assert len(calls.traffic.providers(calls.now)) == 200


def test_every_call_and_agent_of_ten_minutes_counts() -> None:
    """B104: every agent of a large fleet counts."""
    calls = ModelCalls()
    for n in range(2_000):
        calls.call(agent=f"bee-{n}", after=0.1, error_type="overloaded")
    all_fail = calls.get_health()
    for n in range(500):
        calls.call(agent=f"bee-{n}", after=0.0)
    some_fail = calls.get_health()
    calls.now += WINDOW
    idle_health = calls.get_health()

    assert (all_fail.calls, all_fail.failed, all_fail.agents_failing) == (2_000, 2_000, 2_000)
    assert (some_fail.calls, some_fail.failed, some_fail.agents_failing) == (2_500, 2_000, 1_500)
    assert (idle_health.calls, idle_health.agents_failing) == (0, 0)


def test_late_call_does_not_count_as_its_agents_last() -> None:
    calls = ModelCalls()
    calls.call(2)
    calls.call(after=-1.0, error_type="overloaded")
    calls.now += 1

    provider_health = calls.get_health()
    assert (provider_health.failed, provider_health.agents_failing) == (1, 0)
