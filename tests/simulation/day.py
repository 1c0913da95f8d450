"""
``python -m tests.simulation.day``: what a day of judging costs, in calls of the model.

First a fleet that is well, then one of whose workers a twentieth get into trouble, and one in which every
worker does. Monitor, tickets,
interventions, recovery, judge and queen are the real ones; the model behind them answers as the rules do,
and every call of it is counted. The clock is the simulation's own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from queenright.health.store import Store
from tests.simulation.fleet import Odds
from tests.simulation.gaps import Gaps
from tests.simulation.judged import Counting, JudgedFleet


async def day(
    folder: Path,
    *,
    workers: int,
    faults: float,
    seed: int = 1,
    days: float = 1.0,
    model: Counting | None = None,
) -> dict[str, Any]:
    """Let a fleet work, and return what was asked of the model, and for what."""
    store = Store.open(f"sqlite:///{folder / 'simulated.db'}")
    counting = model or Counting()
    try:
        fleet = JudgedFleet(
            store,
            workers=workers,
            seed=seed,
            gaps=Gaps.of(folder),  # nothing is recorded there: the same table on every machine
            odds=Odds(faults_per_worker_day=faults),
            folder=folder,
            model=counting,
        )
        tally = await fleet.run(days)
    finally:
        await store.close()
    tickets = sum(tally.tickets.values())
    calls = counting.calls
    return {
        "workers": workers,
        "days": days,
        "events": tally.events,
        "faults": len(tally.faults),
        "checks": {outcome: fleet.checks(outcome) for outcome in ("healthy", "ticket", "unknown")},
        "tickets": tickets,
        "false_alarms": [f"{who}: {what} ({why})" for _, who, what, why in tally.false_alarms],
        "calls": {
            "judge": calls["judge"],
            "triage": calls["triage"],
            "escalation": calls["escalation"],
            "all": calls.total(),
        },
        "calls_a_ticket": round(calls.total() / tickets, 2) if tickets else None,
    }


def main() -> None:
    """Parse the command line, let two fleets work, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.day", description=__doc__)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument(
        "--faults", type=float, nargs="+", default=[0.0, 0.05, 1.0], help="a worker and day, of each fleet"
    )
    parser.add_argument("--days", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for faults in args.faults:
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(
                day(Path(folder), workers=args.workers, faults=faults, seed=args.seed, days=args.days)
            )
        print(f"faults a worker and day: {faults:g}")
        for name, value in found.items():
            print(f"  {name}: {json.dumps(value)}")


if __name__ == "__main__":
    main()
