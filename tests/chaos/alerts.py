"""
The outbox during failures: ``python -m tests.chaos.alerts --seed N --kills N``.

The service is killed repeatedly, at random moments and at every named point of the outbox, while the
connections to two real Alertmanagers fail in every way. First both are unavailable for an hour, on a
simulated clock. At the end all faults stop, and the decisions are compared with the accepted alerts and the
messages.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

from queenright.alerting.config import render_alertmanager
from queenright.alerting.files import templates_folder
from queenright.alerting.recorder import RecordedMessage, Recorder
from queenright.server.ops.child_processes import Child
from queenright.server.ops.programs import find_program
from queenright.server.ops.sockets import find_free_port, listen, make_socket_url, serve_app
from queenright.server.settings import Settings, load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from tests.chaos.alert_process import POINTS
from tests.chaos.alerts_compared import Fire, compare
from tests.chaos.alerts_world import HOUR, AlertProcess, Bees
from tests.chaos.faulty_proxy import BAD, FaultyProxy
from tests.ports import reserve_port
from tests.waiting import until

GROUP_WAIT = 1.0
GROUP_INTERVAL = 10.0
PEER_TIMEOUT = 1.0
HOLD = 5.0
"""
Seconds for which a ticket holds. As by default, this is several times as long as Alertmanager collects, and
as the second of two waits for the first, so that a busy machine leaves them the time.
"""
_LONGEST_LIFE = 40
"""Number of batches within which a process should reach the point where it is killed."""
_CALM = 300.0
_HEARD = 120.0
"""Time limits in seconds on a busy machine until all faults are over, and all messages have arrived."""
_LOOPED_THEN = (4, 5)
"""Agents that loop in the hour without notifications."""
_LOOPING = (0, 1)
"""Agents that loop at the end; their alerts must fire."""


def _settings(storage: Path, database: str | None, peers: list[str]) -> Settings:
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": storage} | ({"database_url": database} if database else {}),
        alerting={"alertmanager_urls": peers, "late_resolve_seconds": HOLD},
        health_monitoring={
            # Only loops, no interventions, and one message per worker.
            "stall": dict.fromkeys(
                ("idle_seconds", "llm_seconds", "tool_seconds", "unknown_seconds"), 3 * HOUR
            ),
            "judge": {"interval_seconds": 1, "start_grace_seconds": 0.2},
            "tickets": {"hold_seconds": HOLD},
            "intervention": {"enabled": False, "storm": {"workers": 1000}},
        },
    )


@contextlib.asynccontextmanager
async def _cluster(program: Path, folder: Path, receiver: str) -> AsyncIterator[list[int]]:
    """Run two Alertmanagers as a cluster; yield their ports."""
    (folder / "slack").write_text(f"{receiver}/slack/services/T/B/X")
    (folder / "key").write_text("k" * 32)
    config = folder / "alertmanager.yml"
    config.write_text(
        render_alertmanager(
            service_url=receiver,
            slack_api_url_file=folder / "slack",
            pagerduty_routing_key_file=folder / "key",
            pagerduty_url=f"{receiver}/pagerduty/v2/enqueue",
            deadman_url=f"{receiver}/deadman",
            templates=templates_folder(),
            group_wait=f"{GROUP_WAIT:g}s",
            group_interval=f"{GROUP_INTERVAL:g}s",
        )
    )
    reserved = contextlib.ExitStack()
    ports = [reserved.enter_context(reserve_port()) for _ in range(4)]
    children = [
        await Child.start(
            f"Alertmanager {number}",
            [
                program,
                f"--config.file={config}",
                f"--storage.path={folder / f'data{number}'}",
                f"--web.listen-address=127.0.0.1:{ports[number]}",
                f"--cluster.listen-address=127.0.0.1:{ports[2 + number]}",
                f"--cluster.peer=127.0.0.1:{ports[3 - number]}",
                "--cluster.gossip-interval=50ms",
                f"--cluster.peer-timeout={PEER_TIMEOUT:g}s",
            ],
            folder / f"alertmanager{number}.log",
        )
        for number in (0, 1)
    ]
    try:
        for child, port in zip(children, ports, strict=False):
            await child.wait_ready(f"http://127.0.0.1:{port}/-/ready", within=60)
        yield ports[:2]
    finally:
        await asyncio.gather(*(child.stop() for child in children))
        reserved.close()


async def _hour(lives: AlertProcess, bees: Bees, ways: list[FaultyProxy]) -> None:
    """B76: for an hour nobody can be notified, while the service runs, is killed, and runs again."""
    for way in ways:
        await way.set_fault("refuses")
    bees.set_looping(_LOOPED_THEN)
    # Even on a slow machine: at least one decision was made during the outage.
    await lives.killed(8, active=1)
    for ago in (HOUR / 2, 20.0):
        bees.change_worker()
        bees.change_worker()
        bees.ago = ago
        await lives.killed(8)
    bees.ago = 0.0


async def _weather(ways: list[FaultyProxy], bees: Bees, chance: Random) -> None:
    """Change connections and workers at random until cancelled."""
    while True:
        worse = chance.choice(([], ways, [chance.choice(ways)]))
        for way in ways:
            await way.set_fault(chance.choice(BAD) if way in worse else "well")
        for _ in range(chance.randrange(1, 5)):
            await asyncio.sleep(chance.uniform(0.2, 0.8))
            bees.change_worker()


async def _calm(lives: AlertProcess, bees: Bees, fire: Fire) -> dict[str, Any]:
    """Stop all faults, wait until everything is notified, and return the comparison."""
    for way in fire.ways:
        await way.set_fault("well")
    bees.set_looping(_LOOPING)

    def settled() -> bool:
        return lives.outbox.get("active") == len(_LOOPING) and not lives.outbox["pending"]

    await until(settled, f"{len(_LOOPING)} fire, all notified", seconds=_CALM)
    # A relapse within the hold time, or a last ticket, may still be pending.
    await asyncio.sleep(HOLD)
    await until(settled, f"{len(_LOOPING)} fire, all notified", seconds=_CALM)
    # The service delays ends, and Alertmanager sends one at the next group evaluation.
    found = await compare(fire)
    deadline = time.monotonic() + _HEARD
    while found["wrong"] and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        found = await compare(fire)
    return found


async def run_with_failures(
    folder: Path, *, kills: int, seed: int, database: str | None = None
) -> dict[str, Any]:
    """
    Kill the service ``kills`` times, stop all faults, and return the comparison.

    Args:
        folder: The folder for all files.
        kills: Number of kills after the hour without notifications.
        seed: Seed of the faults, the workers and the times.
        database: The store's URL; SQLite in ``folder`` by default.
    """
    program = find_program("alertmanager")
    assert program is not None, "this needs the alertmanager program: `make test` fetches it"
    began, chance, messages = time.monotonic(), Random(seed), list[RecordedMessage]()
    recorder = Recorder(messages.append)
    receiver = listen("127.0.0.1", 0, what="the recorder", option="")
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(serve_app(recorder, receiver))
        ports = await stack.enter_async_context(_cluster(program, folder, make_socket_url(receiver)))
        ways = [FaultyProxy(find_free_port("127.0.0.1", 0, what="a way", option=""), port) for port in ports]
        for way in ways:
            stack.push_async_callback(way.close)
        settings = _settings(folder / "storage", database, [f"http://127.0.0.1:{w.port}" for w in ways])
        (folder / "settings.json").write_text(settings.model_dump_json(), "utf-8")
        bees = Bees(Random(seed + 1))
        lives = await stack.enter_async_context(AlertProcess(folder / "settings.json", bees).mother())

        await _hour(lives, bees, ways)
        weather = asyncio.create_task(_weather(ways, bees, chance))
        for number in range(kills):
            point = "" if number % 3 == 2 else POINTS[(number - number // 3) % len(POINTS)]
            longest = _LONGEST_LIFE if point else chance.randrange(_LONGEST_LIFE // 2)
            bees.change_worker()
            await lives.killed(longest, point=point, nth=chance.choice((1, 1, 2)))
        weather.cancel()
        await asyncio.gather(weather, return_exceptions=True)
        fire = Fire(settings, ways, ports, messages, recorder, PEER_TIMEOUT)
        found = await lives.peaceful(_calm(lives, bees, fire))
    deaths = dict(sorted(lives.deaths.items()))
    return {"seed": seed, "seconds": round(time.monotonic() - began, 1), "deaths": deaths, **found}


def main() -> int:
    """Parse the command line, kill, print; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.alerts", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", help="the store's URL, SQLite if none is given")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(
            run_with_failures(Path(folder), kills=args.kills, seed=args.seed, database=args.database)
        )
    print(json.dumps(found, indent=2))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
