"""What judging costs over a day, shorter: nothing for workers that are well, at most 3 calls a ticket."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.day import day

pytestmark = pytest.mark.xdist_group("simulation")


async def test_a_hundred_workers_that_are_well_cost_no_call_of_the_model(tmp_path: Path) -> None:
    """With users that think, rate limits, slow tools and restarts among them."""
    found = await day(tmp_path, workers=100, faults=0.0, days=0.1)

    assert found["calls"]["all"] == 0
    assert found["tickets"] == 0
    # It was there, and looked.
    assert found["checks"]["healthy"] > 60
    assert found["events"] > 50_000


async def test_a_ticket_costs_at_most_three_calls_of_the_model(tmp_path: Path) -> None:
    """Also where the queen has to decide on escalations."""
    found = await day(tmp_path, workers=15, faults=2.0, days=0.6)

    assert found["tickets"] >= 8
    assert found["checks"]["unknown"] == 0
    assert 2.0 <= found["calls_a_ticket"] <= 3.0
