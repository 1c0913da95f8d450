"""
``python -m tests.clients``: run the real coding agents, and record their requests.

Each run has an empty home, and a scripted model provider and a recorder on loopback. It calls no real model
and needs no key. The clients are installed from npm at the versions in ``pins.json``, in ``.tools/clients/``.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Final

from tests.clients.clients import CLIENTS, list_runs
from tests.clients.fixtures import write_fixture
from tests.clients.install import NODE, InstallError, install, pin, pinned_version
from tests.clients.live import LIMITS, LIVE_SCENARIOS, ObservedRun, observe_client
from tests.clients.matrix import render_matrix
from tests.clients.recording import RunError, record
from tests.clients.scenarios import SCENARIOS
from tests.clients.scrubbing import make_fixture

_EXAMPLES: Final = """\
examples:
  python -m tests.clients run claude-code                   what the service shows of one client
  python -m tests.clients record                            every client in every scenario
  python -m tests.clients record claude-code                one client
  python -m tests.clients record codex --scenario loop      one client in one scenario
  python -m tests.clients pin codex@0.169.0                 pin another version, then record it
"""


async def record_scenario(name: str, scenario_name: str, variant: str, command: list[str]) -> str:
    """Record one scenario, write its fixture, and return a line about it."""
    client, scenario = CLIENTS[name], SCENARIOS[scenario_name]
    start = time.monotonic()
    recording = await record(client, scenario, variant, command)
    fixture = make_fixture(client, scenario, variant, recording, version=pinned_version(client))
    write_fixture(fixture)
    codes = ", ".join(map(str, fixture.exit_codes))
    end_text = f"ended {f'by {fixture.ended_by}' if fixture.ended_by else 'by itself'} with exit code {codes}"
    duration = f"{time.monotonic() - start:.0f} s"
    return f"{name:12} {fixture.name:22} {len(fixture.records):3} requests, {end_text}, {duration}"


async def record_all(names: list[str], scenarios: list[str], jobs: int) -> bool:
    """Install the clients and record them, ``jobs`` scenarios at a time; return whether all succeeded."""
    commands = {name: install(CLIENTS[name]) for name in names}
    limit = asyncio.Semaphore(jobs)

    async def attempt(name: str, scenario: str, variant: str) -> bool:
        async with limit:
            try:
                print(await record_scenario(name, scenario, variant, commands[name]), flush=True)
            except RunError as error:
                print(error, file=sys.stderr, flush=True)
                return False
            return True

    runs = (attempt(*run) for run in list_runs(names, scenarios))
    return all(await asyncio.gather(*runs))


async def run_all(names: list[str], scenarios: list[str], jobs: int) -> bool:
    """Install the clients, run them against a service, and print the matrix; return whether all ran."""
    commands = {name: install(CLIENTS[name]) for name in names}
    limit = asyncio.Semaphore(jobs)
    runs_by_client: dict[str, dict[str, ObservedRun]] = {name: {} for name in names}

    async def attempt(name: str, scenario: str) -> None:
        async with limit:
            start = time.monotonic()
            observed_run = await observe_client(CLIENTS[name], LIVE_SCENARIOS[scenario], commands[name])
            runs_by_client[name][scenario] = observed_run
            outcome = observed_run.error or f"findings {sorted(observed_run.findings)}"
            duration = f"{time.monotonic() - start:.0f} s"
            print(f"{name:12} {scenario:14} {duration:>6} {outcome}", file=sys.stderr, flush=True)

    await asyncio.gather(*(attempt(name, scenario) for name in names for scenario in scenarios))
    print(render_matrix(runs_by_client, {name: pinned_version(CLIENTS[name]) for name in names}))
    return not any(
        observed_run.error for scenario in runs_by_client.values() for observed_run in scenario.values()
    )


def main() -> int:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.clients",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    names, scenario_names = ", ".join(CLIENTS), ", ".join(SCENARIOS)
    help_text = "Run clients, and write what they send as scrubbed fixtures"
    record_parser = commands.add_parser("record", help=help_text, description=f"{help_text}.")
    record_parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"{names} (default: all)")
    record_parser.add_argument(
        "--scenario",
        action="append",
        choices=SCENARIOS,
        metavar="NAME",
        help=f"{scenario_names} (default: all)",
    )
    record_parser.add_argument(
        "--jobs", type=int, default=2, help="scenarios at a time (default: %(default)s)"
    )
    help_text = "Run clients against a service, connected by queenright connect, and print what it shows"
    limits = ", ".join(f"stall.{key} {value}" for key, value in LIMITS.items())
    description = f"{help_text}. Detection limits are shortened: {limits}."
    run_parser = commands.add_parser("run", help=help_text, description=description)
    run_parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"{names} (default: all)")
    run_parser.add_argument(
        "--scenario",
        action="append",
        choices=LIVE_SCENARIOS,
        metavar="NAME",
        help=f"{', '.join(LIVE_SCENARIOS)} (default: all)",
    )
    run_parser.add_argument("--jobs", type=int, default=2, help="scenarios at a time (default: %(default)s)")
    help_text = "Pin another version of a client, or of Node, in pins.json"
    pin_parser = commands.add_parser("pin", help=help_text, description=f"{help_text}.")
    pin_parser.add_argument("pins", nargs="+", metavar="NAME@VERSION", help=f"NAME: {names}, {NODE}")
    args = parser.parse_args()
    try:
        if args.command == "pin":
            pins = [text.partition("@")[::2] for text in args.pins]
            for name, version in pins:
                if name not in {*CLIENTS, NODE} or not version:
                    pin_parser.error(f"{name}@{version}: use NAME@VERSION with a NAME of {names}, {NODE}")
            for name, version in pins:
                pin(name, version)
        else:
            for name in args.clients:
                if name not in CLIENTS:
                    parser.error(f"{name!r} is not a client; use {names}")
            client_names, scenario_names = args.clients or list(CLIENTS), args.scenario
            if args.command == "run":
                command_run = run_all(client_names, scenario_names or list(LIVE_SCENARIOS), args.jobs)
            else:
                command_run = record_all(client_names, scenario_names or list(SCENARIOS), args.jobs)
            return 0 if asyncio.run(command_run) else 1
    except InstallError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
