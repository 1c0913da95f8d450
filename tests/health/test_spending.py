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


def make_settings(**limits: Any) -> HealthSettings:
    return HealthSettings.model_validate({"judge": {"start_grace_seconds": 0}, "spending": limits})


def report_spending(script: WorkerScript, dollars: float | None, **fields: Any) -> None:
    cost = {} if dollars is None else {"cost_usd": dollars}
    script.report_event(EventType.LLM_CALL_COMPLETED, {"input_tokens": 100, **cost, **fields})


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
    script = WorkerScript(settings=make_settings(run_usd=1)).start()
    report_spending(script, spent)

    finding = script.get_finding(SPENDING)
    assert (finding.severity if finding else None) == severity
    assert script.state is (HealthState.HEALTHY if finding is None else HealthState.DEGRADED)


def test_evidence_has_spending_and_unpriced_tokens() -> None:
    """B106."""
    script = WorkerScript(settings=make_settings(run_usd=1)).start()
    report_spending(script, 0.9)
    report_spending(script, None)

    finding = script.get_finding(SPENDING)
    assert finding is not None
    assert all(part in finding.evidence for part in ("$0.90 of $1.00", "100 tokens"))


def test_no_limit_means_no_finding() -> None:
    script = WorkerScript(settings=make_settings()).start()
    report_spending(script, 1_000_000.0)

    assert script.get_finding(SPENDING) is None


def test_sessions_of_an_agent_share_a_daily_limit_and_the_fleet_has_another() -> None:
    monitor = HealthMonitor(make_settings(agent_day_usd=1, day_usd=3))
    first = WorkerScript(monitor=monitor, session="one").start()
    second = WorkerScript(monitor=monitor, session="two").start()
    other = WorkerScript(monitor=monitor, agent="other").start()
    report_spending(first, 0.6)
    report_spending(second, 0.6)
    report_spending(other, 0.5)
    agent_finding, other_agent_finding = second.get_finding(SPENDING), other.get_finding(SPENDING)
    report_spending(other, 0.9)
    report_spending(first, 0.5)

    assert first.get_finding(SPENDING) is not None  # it continues to spend
    assert agent_finding is not None
    assert agent_finding.evidence.startswith("$1.20 of $1.00")
    assert other_agent_finding is None
    fleet_finding = first.get_finding(SPENDING)
    assert fleet_finding is not None
    assert fleet_finding.evidence.startswith("$1.70 of $1.00")


def test_new_day_begins_at_midnight() -> None:
    script = WorkerScript(settings=make_settings(agent_day_usd=1), at=20_000 * DAY - 100).start()
    report_spending(script, 1.0)
    before = script.get_finding(SPENDING)
    script.stay_silent(200)

    assert before is not None
    assert script.get_finding(SPENDING) is None


def test_replay_restores_daily_spending() -> None:
    settings = make_settings(agent_day_usd=1)
    script = WorkerScript(settings=settings).start()
    report_spending(script, 0.6)
    report_spending(script, 0.6)
    replayed_monitor = HealthMonitor(settings)
    for event in script.worker_events:
        replayed_monitor.replay(event, event.time)
    replayed_monitor.sweep(script.now)

    [worker] = replayed_monitor.workers()
    assert [(finding.kind, finding.severity) for finding in worker.findings] == [(SPENDING, Severity.HIGH)]


def test_amendment_that_prices_a_call_counts() -> None:
    """B106."""
    script = WorkerScript(settings=make_settings(agent_day_usd=1)).start()
    report_spending(script, None)
    report_spending(script, 1.5, amends=True, priced_tokens=100)

    assert script.get_finding(SPENDING) is not None


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0, 100), st.integers(0, 3).map(lambda d: d * DAY)),
        max_size=30,
    )
)
def test_daily_spending_is_the_sum_of_its_events(payments: list[tuple[str, float, float]]) -> None:
    daily_spending, latest_time = DailySpending(), 0.0
    for n, (agent, dollars, at) in enumerate(payments):
        total = daily_spending.add(agent, dollars, at)
        latest_time = max(latest_time, at)
        last_time = max(payment[2] for payment in payments[: n + 1])
        day_payments = [payment for payment in payments[: n + 1] if payment[2] == last_time]
        # Costs of earlier days do not count.
        assert total.day == int(latest_time // DAY)
        assert total.fleet == pytest.approx(sum(payment[1] for payment in day_payments))
        assert total.agent == pytest.approx(
            sum(payment[1] for payment in day_payments if payment[0] == agent)
        )
        assert total.agent <= total.fleet + 1e-9
