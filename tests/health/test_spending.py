"""Spending limits of agents."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.health.detection.health_state import HealthState
from queenright.health.detection.spending import DAY, DailySpending
from queenright.health.findings import FindingKind, Severity
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.runtime.events import EventType
from tests.health.worker_script import WorkerScript

SPENDING = FindingKind.SPENDING


def test_restored_sums_are_shared_with_other_services() -> None:
    spending = DailySpending(lambda agent, day: (1.0, 2.0))

    spending.restore(3, 5.0, {"bee": 5.0})

    assert spending.take_changed() == (3, {"bee": 5.0})
    assert spending.take_changed() == (3, {})
    assert spending.add("bee", 1.0, 3 * DAY) == (3, 7.0, 8.0)
    assert spending.take_changed() == (3, {"bee": 6.0})


def settings_with(**limits: Any) -> HealthSettings:
    return HealthSettings.model_validate({"judge": {"start_grace_seconds": 0}, "spending": limits})


def spend(script: WorkerScript, dollars: float | None, **more: Any) -> None:
    cost = {} if dollars is None else {"cost_usd": dollars}
    script.event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 100, **cost, **more})


@pytest.mark.parametrize(
    ("spent", "severity"),
    [
        (0.79, None),
        (0.8, Severity.MEDIUM),
        (0.99, Severity.MEDIUM),
        (1.0, Severity.HIGH),
        (7.0, Severity.HIGH),
    ],
)
def test_run_is_warned_near_its_limit_and_over_it_at_the_limit(
    spent: float, severity: Severity | None
) -> None:
    script = WorkerScript(settings=settings_with(run_usd=1)).start()
    spend(script, spent)

    finding = script.finding(SPENDING)
    assert (finding.severity if finding else None) == severity
    assert script.state is (HealthState.HEALTHY if finding is None else HealthState.DEGRADED)


def test_evidence_has_spending_and_unpriced_tokens() -> None:
    """B106"""
    script = WorkerScript(settings=settings_with(run_usd=1)).start()
    spend(script, 0.9)
    spend(script, None)

    finding = script.finding(SPENDING)
    assert finding is not None
    assert all(part in finding.evidence for part in ("$0.90 of $1.00", "100 tokens"))


def test_no_limit_means_no_finding() -> None:
    script = WorkerScript(settings=settings_with()).start()
    spend(script, 1_000_000.0)

    assert script.finding(SPENDING) is None


def test_sessions_of_an_agent_share_a_daily_limit_and_the_fleet_has_another() -> None:
    monitor = HealthMonitor(settings_with(agent_day_usd=1, day_usd=3))
    first = WorkerScript(monitor=monitor, session="one").start()
    second = WorkerScript(monitor=monitor, session="two").start()
    other = WorkerScript(monitor=monitor, agent="other").start()
    spend(first, 0.6)
    spend(second, 0.6)
    spend(other, 0.5)
    of_agent, alone = second.finding(SPENDING), other.finding(SPENDING)
    spend(other, 0.9)
    spend(first, 0.5)

    assert first.finding(SPENDING) is not None  # it continues to spend
    assert of_agent is not None
    assert of_agent.evidence.startswith("$1.20 of $1.00")
    assert alone is None
    in_all = first.finding(SPENDING)
    assert in_all is not None
    assert in_all.evidence.startswith("$1.70 of $1.00")


def test_new_day_begins_at_midnight() -> None:
    script = WorkerScript(settings=settings_with(agent_day_usd=1), at=20_000 * DAY - 100).start()
    spend(script, 1.0)
    before = script.finding(SPENDING)
    script.silence(200)

    assert before is not None
    assert script.finding(SPENDING) is None


def test_replay_restores_daily_spending() -> None:
    settings = settings_with(agent_day_usd=1)
    script = WorkerScript(settings=settings).start()
    spend(script, 0.6)
    spend(script, 0.6)
    again = HealthMonitor(settings)
    for event in script.heard:
        again.replay(event, event.time)
    again.sweep(script.now)

    [worker] = again.workers()
    assert [(finding.kind, finding.severity) for finding in worker.findings] == [(SPENDING, Severity.HIGH)]


def test_amendment_that_prices_a_call_counts() -> None:
    """B106"""
    script = WorkerScript(settings=settings_with(agent_day_usd=1)).start()
    spend(script, None)
    spend(script, 1.5, amends=True, priced_tokens=100)

    assert script.finding(SPENDING) is not None


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0, 100), st.integers(0, 3).map(lambda d: d * DAY)),
        max_size=30,
    )
)
def test_daily_spending_is_the_sum_of_its_events(payments: list[tuple[str, float, float]]) -> None:
    today, known = DailySpending(), 0.0
    for n, (agent, dollars, at) in enumerate(payments):
        total = today.add(agent, dollars, at)
        known = max(known, at)
        last = max(payment[2] for payment in payments[: n + 1])
        of_day = [payment for payment in payments[: n + 1] if payment[2] == last]
        # Costs of earlier days do not count.
        assert total.day == int(known // DAY)
        assert total.fleet == pytest.approx(sum(payment[1] for payment in of_day))
        assert total.agent == pytest.approx(sum(payment[1] for payment in of_day if payment[0] == agent))
        assert total.agent <= total.fleet + 1e-9
