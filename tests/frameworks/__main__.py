"""
``python -m tests.frameworks``: run real agent frameworks, and record their requests.

Each framework runs in its own environment, at the versions in ``pins/``, with the scripted model provider and
the recorder of ``tests/clients`` on loopback. It calls no real model and needs no key.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.clients.install import InstallError
from tests.clients.recording import RunError, record
from tests.clients.scenarios import SCENARIOS, Scenario
from tests.clients.scrubbing import make_fixture
from tests.frameworks.fixtures import fixture_path, write_fixture
from tests.frameworks.install import format_versions, install, pin
from tests.frameworks.matrix import measure
from tests.frameworks.pairs import PAIRS, Pair, list_runs
from tests.frameworks.pruning import prune

_EXAMPLES: Final = """\
examples:
  python -m tests.frameworks record                           every pair in every scenario
  python -m tests.frameworks record strands --scenario loop   one pair in one scenario
  python -m tests.frameworks pin strands                      pin its newest version, then record it
"""


async def record_scenario(pair: Pair, scenario: Scenario, variant: str, command: list[str]) -> str:
    """Record one scenario, write its fixture, and return a line about it."""
    client = pair.client
    recording = await record(client, scenario, variant, command)
    fixture = make_fixture(
        client, scenario, variant, recording, version=format_versions(pair), is_pruned=False
    )
    records = tuple(replace(one, body=prune(one.body)) for one in fixture.records)
    write_fixture(replace(fixture, records=records))
    size = fixture_path(pair.name, fixture.name).stat().st_size
    return f"{pair.name:28} {fixture.name:20} {len(fixture.records):3} requests, {size:7,} bytes"


async def record_all(names: list[str], scenarios: list[str], jobs: int) -> bool:
    """Install the pairs and record them, ``jobs`` scenarios at a time; return whether all succeeded."""
    commands = {name: install(PAIRS[name]) for name in names}
    limit = asyncio.Semaphore(jobs)

    async def attempt(pair: Pair, scenario: Scenario, variant: str) -> bool:
        async with limit:
            try:
                print(await record_scenario(pair, scenario, variant, commands[pair.name]), flush=True)
            except RunError as error:
                print(error, file=sys.stderr, flush=True)
                return False
            return True

    return all(await asyncio.gather(*(attempt(*run) for run in list_runs(names, scenarios))))


def main() -> int:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.frameworks",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    record_parser = commands.add_parser("record", help="Run pairs, and write what they send as fixtures")
    record_parser.add_argument("pairs", nargs="*", metavar="PAIR", help=f"{', '.join(PAIRS)} (default: all)")
    record_parser.add_argument("--scenario", action="append", choices=SCENARIOS, metavar="NAME")
    record_parser.add_argument(
        "--jobs", type=int, default=3, help="scenarios at a time (default: %(default)s)"
    )
    pin_parser = commands.add_parser("pin", help="Pin the newest versions of pairs")
    pin_parser.add_argument("pairs", nargs="+", metavar="PAIR")
    matrix_parser = commands.add_parser(
        "matrix", help="Print what a real service reports about the recordings"
    )
    matrix_parser.add_argument("pairs", nargs="*", metavar="PAIR")
    args = parser.parse_args()
    for name in args.pairs:
        if name not in PAIRS:
            parser.error(f"{name!r} is not a pair; use {', '.join(PAIRS)}")
    try:
        if args.command == "pin":
            for name in args.pairs:
                pin(PAIRS[name])
            return 0
        if args.command == "matrix":
            for name in args.pairs or list(PAIRS):
                with tempfile.TemporaryDirectory() as folder:
                    print(f"{name}: {asyncio.run(measure(PAIRS[name], Path(folder)))}", flush=True)
            return 0
        recording = record_all(args.pairs or list(PAIRS), args.scenario or list(SCENARIOS), args.jobs)
        return 0 if asyncio.run(recording) else 1
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
