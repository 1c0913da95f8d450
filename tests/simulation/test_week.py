"""A simulated week of a small fleet with every kind of fault."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tools.simulation.__main__ import simulate
from tools.simulation.faults import FaultKind

DAYS = 7
WORKERS = 28
"""The simulation takes about 30 s of one core."""


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of the week, simulated once."""
    # No recorded runs: the same table of quantiles on every machine.
    folder = tmp_path_factory.mktemp("week")
    return asyncio.run(simulate(folder, days=DAYS, workers=WORKERS, seed=7, traces=folder))


def test_every_fault_is_found_within_5_seconds_of_its_threshold(week: dict[str, Any]) -> None:
    """002 §11: every fault of a worker is detected on time."""
    assert week["missed"] == []
    assert set(week["detection"]) == {kind.value for kind in FaultKind}
    assert {kind for kind, spread in week["detection"].items() if spread["max"] > 5.0} == set()


def test_healthy_workers_have_few_false_alarms(week: dict[str, Any]) -> None:
    """002 §11: over 7 days, false alarms stay below 1 % of worker-days."""
    assert week["false_alarm_rate"] < 0.01, week["false_alarms"]


def test_recoverable_work_is_recovered(week: dict[str, Any]) -> None:
    """002 §11: over 95 % of the lost tasks that an attempt can save are recovered."""
    assert week["recoveries"]["tasks"] >= 5
    assert week["recovered_share"] > 0.95, week["recoveries"]


def test_finished_work_is_never_restarted(week: dict[str, Any]) -> None:
    """B70: sessions end at every moment of a recovery in this week."""
    assert week["finished_work_restarted"] == 0


def test_no_action_on_waiting_ended_or_restarted_workers(week: dict[str, Any]) -> None:
    """B69: this holds for every kind of action."""
    assert week["acted_on_waiting_finished_or_other"] == 0
