"""A week of a small fleet, with every kind of trouble: what the health layer promises, counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tools.simulation.__main__ import simulate
from tools.simulation.faults import FaultKind

DAYS = 7
WORKERS = 28
"""As many as some 30 s of one core are enough for."""


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The week, played once."""
    # No recorded runs: the same table of quantiles on every machine.
    folder = tmp_path_factory.mktemp("week")
    return asyncio.run(simulate(folder, days=DAYS, workers=WORKERS, seed=7, traces=folder))


def test_every_fault_is_found_within_5_seconds_of_its_threshold(week: dict[str, Any]) -> None:
    """002 §11: whatever goes wrong with a worker is detected, and on time."""
    assert week["missed"] == []
    assert set(week["detection"]) == {kind.value for kind in FaultKind}
    assert {kind for kind, spread in week["detection"].items() if spread["max"] > 5.0} == set()


def test_healthy_workers_have_few_false_alarms(week: dict[str, Any]) -> None:
    """002 §11: over 7 days false alarms stay below 1 % of worker-days."""
    assert week["false_alarm_rate"] < 0.01, week["false_alarms"]


def test_recoverable_work_is_recovered(week: dict[str, Any]) -> None:
    """002 §11: over 95 % of the lost tasks get further, where any attempt could have saved them."""
    assert week["recoveries"]["tasks"] >= 5
    assert week["recovered_share"] > 0.95, week["recoveries"]


def test_finished_work_is_never_restarted(week: dict[str, Any]) -> None:
    """B70: in a week in which sessions end at every moment of a recovery."""
    assert week["finished_work_restarted"] == 0


def test_no_action_on_waiting_ended_or_restarted_workers(week: dict[str, Any]) -> None:
    """B69: whatever path leads to it."""
    assert week["acted_on_waiting_finished_or_other"] == 0
