"""What judging costs over a day, shorter: nothing for workers that are well, at most 3 calls a ticket."""

from __future__ import annotations

from pathlib import Path

from tools.simulation.day import day, spread, sum_results


async def test_hundred_healthy_workers_cost_no_model_call(tmp_path: Path) -> None:
    """With users that think, rate limits, slow tools and restarts among them."""
    found = await day(tmp_path, workers=100, faults=0.0, days=0.1)

    assert found["calls"]["all"] == 0
    assert found["tickets"] == 0
    # It was there, and looked.
    assert found["checks"]["healthy"] > 60
    assert found["events"] > 50_000


async def test_ticket_costs_at_most_three_calls_of_the_model(tmp_path: Path) -> None:
    """Each, also where its severity rises or the queen has to decide on an escalation."""
    found = await day(tmp_path, workers=15, faults=2.0, days=0.6)

    assert found["tickets"] == len(found["calls_by_ticket"]) >= 8
    assert found["checks"]["unknown"] == 0
    assert found["calls_by_ticket"][0] >= 2
    assert found["calls_by_ticket"][-1] <= 3
    assert found["calls_without_ticket"] <= 1
    # Every call is somebody's.
    assert sum(found["calls_by_ticket"]) + found["calls_without_ticket"] == found["calls"]["all"]


async def test_finding_called_healthy_is_not_sent_to_the_model_at_every_tick(tmp_path: Path) -> None:
    """All of them: each is asked about again ever less often, and is a ticket when it gets worse."""
    found = await day(tmp_path, workers=15, faults=2.0, days=0.6, healthy=1.0)

    assert found["calls_without_ticket"] > 0
    assert found["most_without_ticket"] <= 10
    assert found["calls_by_ticket"][-1] <= 10
    assert found["calls"]["all"] <= 3 * found["faults"]
    assert found["tickets"] >= 8


def test_cost_of_days_has_minimum_mean_and_maximum() -> None:
    one = {
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
    other = {**one, "seed": 2, "calls_by_ticket": [2, 5], "calls_without_ticket": 4, "most_without_ticket": 3}

    found = sum_results([one, other])

    assert found["calls_per_ticket"] == {"min": 2, "mean": 3.0, "max": 5}
    assert (found["days"], found["tickets"], found["calls"]) == (1.0, 4, {"judge": 6, "all": 10})
    assert (found["calls_without_ticket"], found["most_without_ticket_for_one_worker"]) == (4, 3)
    assert spread([]) is None
