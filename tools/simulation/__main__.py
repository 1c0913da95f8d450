"""
``python -m tools.simulation --days 7 --workers 200``: simulate a fleet for a week and print the results.

The clock is simulated, so a week takes minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from queenright.health.settings import HealthSettings
from queenright.health.store.store import Store
from tools.simulation.fleet import Fleet, Odds
from tools.simulation.gaps import Gaps
from tools.simulation.report import build_report


async def simulate(
    folder: Path,
    *,
    days: float,
    workers: int,
    seed: int,
    traces: Path | None = None,
    odds: Odds | None = None,
    settings: HealthSettings | None = None,
) -> dict[str, Any]:
    """Run the simulation with its database in ``folder``, and return the report."""
    store = Store.open(f"sqlite:///{folder / 'simulated.db'}")
    try:
        start = time.process_time()
        fleet = Fleet(store, workers=workers, seed=seed, gaps=Gaps.of(traces), odds=odds, settings=settings)
        tally = await fleet.run(days)
        return build_report(fleet, tally, days) | {
            "cpu_seconds": round(time.process_time() - start, 1),
            "seed": seed,
        }
    finally:
        await store.close()


def _format_table(result: dict[str, Any]) -> None:
    detection = result.pop("detection")
    for name, value in result.items():
        print(f"{name}: {json.dumps(value)}")
    print("\nseconds from threshold to finding      count    p50    p99    max")
    for kind, spread in detection.items():
        numbers = "".join(f"{spread[name]:7.2f}" for name in ("p50", "p99", "max"))
        print(f"{kind:38s} {spread['count']:5d}{numbers}")


def main() -> None:
    """Parse the command line, simulate, print."""
    parser = argparse.ArgumentParser(prog="python -m tools.simulation", description=__doc__)
    parser.add_argument("--days", type=float, default=7)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=float, default=Odds.faults_per_worker_day, help="per worker and day")
    parser.add_argument("--learned-clocks", choices=("on", "shadow", "off"), default="shadow")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--traces", type=Path, help="folder of recorded runs; built-in table by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(
            simulate(
                Path(folder),
                days=args.days,
                workers=args.workers,
                seed=args.seed,
                traces=args.traces,
                odds=Odds(faults_per_worker_day=args.faults),
                settings=HealthSettings.model_validate({"learned_clocks": {"mode": args.learned_clocks}}),
            )
        )
    if args.json:
        json.dump(result, sys.stdout, indent=2)
        print()
    else:
        _format_table(result)


if __name__ == "__main__":
    main()
