"""
``python -m tools.simulation.day``: what days of judging cost, in calls of the model.

A fleet that is well, one of whose workers a twentieth get into trouble on a day, and one in which every
worker does: each lives day after day, each with a seed of its own, until 30 tickets are measured.
Then once more, with a model that calls half of the medium findings healthy, and stays of that opinion.

Monitor, tickets, interventions, recovery, judge and queen are the real ones; the model behind them answers
as the rules do otherwise, and every call of it is counted for its ticket. The clock is the simulation's own.
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
from tools.simulation.priced import Attributing, PricedFleet

Result = dict[str, Any]


async def day(
    folder: Path, *, workers: int, faults: float, seed: int = 1, days: float = 1.0, healthy: float = 0.0
) -> Result:
    """
    Let a fleet work, and return what was asked of the model, and for what.

    Args:
        healthy: The share of medium findings that the model calls healthy.
    """
    store = Store.open(f"sqlite:///{folder / 'simulated.db'}")
    model = Attributing(healthy)
    try:
        fleet = PricedFleet(
            store,
            workers=workers,
            seed=seed,
            gaps=Gaps.of(folder),  # nothing is recorded there: the same table on every machine
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
        "checks": {outcome: fleet.checks(outcome) for outcome in ("healthy", "ticket", "unknown")},
        "tickets": sum(tally.tickets.values()),
        "false_alarms": [f"{who}: {what} ({why})" for _, who, what, why in tally.false_alarms],
        "calls": {
            **{desk: model.calls[desk] for desk in ("judge", "triage", "escalation")},
            "all": model.calls.total(),
        },
        "calls_by_ticket": sorted(calls.total() for calls in model.by_ticket.values()),
        "calls_without_ticket": sum(calls.total() for calls in model.waiting.values()),
        "most_without_ticket": max((calls.total() for calls in model.waiting.values()), default=0),
    }


def sum_results(results: Sequence[Result]) -> Result:
    """Return what several days came to together, and what a ticket and a day cost at least and at most."""
    by_ticket = [calls for one in results for calls in one["calls_by_ticket"]]
    a_day = [one["calls"]["all"] / one["days"] for one in results]
    return {
        "days": sum(one["days"] for one in results),
        "seeds": [one["seed"] for one in results],
        "events": sum(one["events"] for one in results),
        "faults": sum(one["faults"] for one in results),
        "tickets": sum(one["tickets"] for one in results),
        "false_alarms": [alarm for one in results for alarm in one["false_alarms"]],
        "calls": {who: sum(one["calls"][who] for one in results) for who in results[0]["calls"]},
        "calls_a_day": spread(a_day),
        "calls_per_ticket": spread(by_ticket),
        "calls_without_ticket": sum(one["calls_without_ticket"] for one in results),
        "most_without_ticket_for_one_worker": max(one["most_without_ticket"] for one in results),
    }


def spread(numbers: Sequence[float]) -> dict[str, float] | None:
    """Return least, mean and most; None of nothing."""
    if not numbers:
        return None
    return {"min": min(numbers), "mean": round(sum(numbers) / len(numbers), 2), "max": max(numbers)}


def measure(*, workers: int, faults: float, healthy: float, tickets: int, most_days: int) -> Result:
    """Let fleets live a day each, until so many tickets are measured or days are over; say how it goes."""
    results: list[Result] = []
    while len(results) < most_days and sum(one["tickets"] for one in results) < tickets:
        with tempfile.TemporaryDirectory() as folder:
            living = day(Path(folder), workers=workers, faults=faults, seed=len(results) + 1, healthy=healthy)
            results.append(asyncio.run(living))
        print(f"  {json.dumps(results[-1])}", file=sys.stderr, flush=True)
        if not faults:
            break
    return sum_results(results)


def main() -> None:
    """Parse the command line, let fleets work, print."""
    parser = argparse.ArgumentParser(prog="python -m tools.simulation.day", description=__doc__)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument(
        "--faults", type=float, nargs="+", default=[0.0, 0.05, 1.0], help="a worker and day, of each fleet"
    )
    parser.add_argument(
        "--healthy",
        type=float,
        nargs="+",
        default=[0.0, 0.5],
        help="the share of medium findings that each model calls healthy",
    )
    parser.add_argument("--tickets", type=int, default=30, help="to be measured, at least")
    parser.add_argument("--most-days", type=int, default=20, help="of each fleet")
    args = parser.parse_args()
    for healthy in args.healthy:
        for faults in args.faults:
            print(f"faults a worker and day: {faults:g}; medium findings called healthy: {healthy:.0%}")
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
