"""The cost of judging: nothing for healthy workers, and at most 3 model calls per ticket."""

from __future__ import annotations

from pathlib import Path

from tools.simulation.day import simulate_day, sum_results, summarize


async def test_hundred_healthy_workers_cost_no_model_call(tmp_path: Path) -> None:
    """This includes waits for users, rate limits, slow tools and restarts."""
    results = await simulate_day(tmp_path, workers=100, faults=0.0, days=0.1)

    assert results["calls"]["all"] == 0
    assert results["tickets"] == 0
    # Nevertheless, the judge checked them.
    assert results["checks"]["healthy"] > 60
    assert results["events"] > 50_000


async def test_ticket_costs_at_most_three_calls_of_the_model(tmp_path: Path) -> None:
    """This includes tickets whose severity rises and decisions of the queen on escalations."""
    results = await simulate_day(tmp_path, workers=15, faults=2.0, days=0.6)

    assert results["tickets"] == len(results["calls_by_ticket"]) >= 8
    assert results["checks"]["unknown"] == 0
    assert results["calls_by_ticket"][0] >= 2
    assert results["calls_by_ticket"][-1] <= 3
    assert results["calls_without_ticket"] <= 1
    # Every call is attributed.
    assert sum(results["calls_by_ticket"]) + results["calls_without_ticket"] == results["calls"]["all"]


async def test_finding_judged_healthy_is_rechecked_at_growing_intervals(tmp_path: Path) -> None:
    """The model is called less and less often about each finding, and a ticket opens when it gets worse."""
    results = await simulate_day(tmp_path, workers=15, faults=2.0, days=0.6, healthy=1.0)

    assert results["calls_without_ticket"] > 0
    assert results["most_without_ticket"] <= 10
    assert results["calls_by_ticket"][-1] <= 10
    assert results["calls"]["all"] <= 3 * results["faults"]
    assert results["tickets"] >= 8


def test_cost_of_days_has_minimum_mean_and_maximum() -> None:
    first = {
        "seed": 1,
        "days": 0.5,
        "events": 10,
        "faults": 2,
        "tickets": 2,
        "false_alarms": [],
        "calls": {"judge": 3, "all": 5},
        "calls_by_ticket": [2, 3],
        "calls_without_ticket": 0,
        "most_without_ticket": 0,
    }
    second = {
        **first,
        "seed": 2,
        "calls_by_ticket": [2, 5],
        "calls_without_ticket": 4,
        "most_without_ticket": 3,
    }

    results = sum_results([first, second])

    assert results["calls_per_ticket"] == {"min": 2, "mean": 3.0, "max": 5}
    assert (results["days"], results["tickets"], results["calls"]) == (1.0, 4, {"judge": 6, "all": 10})
    assert (results["calls_without_ticket"], results["most_without_ticket_for_one_worker"]) == (4, 3)
    assert summarize([]) is None
