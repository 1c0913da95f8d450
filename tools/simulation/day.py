"""
``python -m tools.simulation.day``: what days of judging cost, in model calls.

Three fleets: without faults, with a fault of a twentieth of the workers a day, and with a fault of every
worker a day. Each is simulated day by day, each day with its own seed, until 30 tickets are measured. Then
once more with a model that calls half of the medium findings healthy, always the same ones.

Monitor, tickets, interventions, recovery, judge and queen are real. Otherwise the model answers like the
rules, and each of its calls is attributed to a ticket. The clock is simulated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from queenright.health.store.store import Store
from tools.simulation.fleet import Odds
from tools.simulation.gaps import Gaps
from tools.simulation.priced import AttributingModel, PricedFleet

Result = dict[str, Any]


async def simulate_day(
    folder: Path, *, workers: int, faults: float, seed: int = 1, days: float = 1.0, healthy: float = 0.0
) -> Result:
    """
    Simulate a fleet, and return the model calls and their tickets.

    Args:
        healthy: The share of medium findings that the model calls healthy.
    """
    store = Store.open(f"sqlite:///{folder / 'simulated.db'}")
    model = AttributingModel(healthy)
    try:
        fleet = PricedFleet(
            store,
            workers=workers,
            seed=seed,
            gaps=Gaps.of(folder),  # no recorded runs there: the same table on every machine
            odds=Odds(faults_per_worker_day=faults),
            folder=folder,
            model=model,
        )
        tally = await fleet.run(days)
    finally:
        await store.close()
    return {
        "seed": seed,
        "days": days,
        "events": tally.events,
        "faults": len(tally.faults),
        "checks": {outcome: fleet.count_checks(outcome) for outcome in ("healthy", "ticket", "unknown")},
        "tickets": sum(tally.tickets.values()),
        "false_alarms": [
            f"{agent_id}: {alarm} ({reason})" for _, agent_id, alarm, reason in tally.false_alarms
        ],
        "calls": {
            **{role: model.calls[role] for role in ("judge", "triage", "escalation")},
            "all": model.calls.total(),
        },
        "calls_by_ticket": sorted(calls.total() for calls in model.by_ticket.values()),
        "calls_without_ticket": sum(calls.total() for calls in model.unattributed.values()),
        "most_without_ticket": max((calls.total() for calls in model.unattributed.values()), default=0),
    }


def sum_results(results: Sequence[Result]) -> Result:
    """Return the sums over several days, and the minimum, mean and maximum cost of a ticket and a day."""
    by_ticket = [calls for result in results for calls in result["calls_by_ticket"]]
    calls_per_day = [result["calls"]["all"] / result["days"] for result in results]
    return {
        "days": sum(result["days"] for result in results),
        "seeds": [result["seed"] for result in results],
        "events": sum(result["events"] for result in results),
        "faults": sum(result["faults"] for result in results),
        "tickets": sum(result["tickets"] for result in results),
        "false_alarms": [alarm for result in results for alarm in result["false_alarms"]],
        "calls": {role: sum(result["calls"][role] for result in results) for role in results[0]["calls"]},
        "calls_a_day": summarize(calls_per_day),
        "calls_per_ticket": summarize(by_ticket),
        "calls_without_ticket": sum(result["calls_without_ticket"] for result in results),
        "most_without_ticket_for_one_worker": max(result["most_without_ticket"] for result in results),
    }


def summarize(numbers: Sequence[float]) -> dict[str, float] | None:
    """Return minimum, mean and maximum; None without numbers."""
    if not numbers:
        return None
    return {"min": min(numbers), "mean": round(sum(numbers) / len(numbers), 2), "max": max(numbers)}


def measure(*, workers: int, faults: float, healthy: float, tickets: int, most_days: int) -> Result:
    """Simulate days until ``tickets`` are measured or ``most_days`` are over; print each result on stderr."""
    results: list[Result] = []
    while len(results) < most_days and sum(result["tickets"] for result in results) < tickets:
        with tempfile.TemporaryDirectory() as folder:
            simulation = simulate_day(
                Path(folder), workers=workers, faults=faults, seed=len(results) + 1, healthy=healthy
            )
            results.append(asyncio.run(simulation))
        print(f"  {json.dumps(results[-1])}", file=sys.stderr, flush=True)
        if not faults:
            break
    return sum_results(results)


def main() -> None:
    """Parse the command line, simulate, print."""
    parser = argparse.ArgumentParser(prog="python -m tools.simulation.day", description=__doc__)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument(
        "--faults",
        type=float,
        nargs="+",
        default=[0.0, 0.05, 1.0],
        help="faults per worker and day, one value per fleet",
    )
    parser.add_argument(
        "--healthy",
        type=float,
        nargs="+",
        default=[0.0, 0.5],
        help="share of medium findings that the model calls healthy, one value per model",
    )
    parser.add_argument("--tickets", type=int, default=30, help="minimum number of tickets to measure")
    parser.add_argument("--most-days", type=int, default=20, help="maximum number of days per fleet")
    args = parser.parse_args()
    for healthy in args.healthy:
        for faults in args.faults:
            print(f"faults per worker and day: {faults:g}; medium findings called healthy: {healthy:.0%}")
            results = measure(
                workers=args.workers,
                faults=faults,
                healthy=healthy,
                tickets=args.tickets,
                most_days=args.most_days,
            )
            for name, value in results.items():
                print(f"  {name}: {json.dumps(value)}", flush=True)


if __name__ == "__main__":
    main()
