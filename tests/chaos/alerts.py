"""
The outbox under fire: ``python -m tests.chaos.alerts --seed N --kills N``.

The service is killed again and again, at random moments and at every named point of the outbox, while the
ways to two real Alertmanagers are bad in every way. First both are away for an hour, on a clock that moves.
Afterwards all is calm, and what was decided is held against what the Alertmanagers took and people were told.
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
from queenright.server.ops.sockets import find_free_port, listen, serve_app, socket_url
from queenright.server.settings import Settings, load_settings
from queenright.server.up_options import DEMO_DEFAULTS
from tests.chaos.alert_process import POINTS
from tests.chaos.alerts_compared import Fire, compared
from tests.chaos.alerts_world import HOUR, AlertProcess, Bees
from tests.chaos.faulty_proxy import BAD, FaultyProxy
from tests.ports import reserve_port
from tests.waiting import until

GROUP_WAIT = 1.0
GROUP_INTERVAL = 10.0
PEER_TIMEOUT = 1.0
HOLD = 5.0
"""
Seconds for which a ticket holds. As by default that is some times as long as Alertmanager gathers, and as the
second of two waits for the first, so that a busy machine leaves them the time.
"""
_LONGEST_LIFE = 40
"""Batches in which a life should come to the point where it is to end."""
_CALM = 300.0
_HEARD = 120.0
"""Seconds within which all is well on a busy machine, and people have heard of it: limits, not waits."""
_LOOPED_THEN = (4, 5)
"""Who loops in the hour in which nobody can be told."""
_LOOPING = (0, 1)
"""Who loops at the end: what still holds must be known to hold."""


def _settings(storage: Path, database: str | None, peers: list[str]) -> Settings:
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": storage} | ({"database_url": database} if database else {}),
        alerting={"alertmanager_urls": peers, "late_resolve_seconds": HOLD},
        health_monitoring={
            # Nothing but loops, nobody who acts, and one message for each worker.
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
    """Have two Alertmanagers that know each other; yield their ports."""
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
        await way.be("refuses")
    bees.only(_LOOPED_THEN)
    # However slow the machine is: something was decided that nobody could be told of.
    await lives.killed(8, active=1)
    for ago in (HOUR / 2, 20.0):
        bees.turn()
        bees.turn()
        bees.ago = ago
        await lives.killed(8)
    bees.ago = 0.0


async def _weather(ways: list[FaultyProxy], bees: Bees, chance: Random) -> None:
    """Change connections and workers at random until cancelled."""
    while True:
        worse = chance.choice(([], ways, [chance.choice(ways)]))
        for way in ways:
            await way.be(chance.choice(BAD) if way in worse else "well")
        for _ in range(chance.randrange(1, 5)):
            await asyncio.sleep(chance.uniform(0.2, 0.8))
            bees.turn()


async def _calm(lives: AlertProcess, bees: Bees, fire: Fire) -> dict[str, Any]:
    """Let all be well until everybody knows how things are; return what is then found."""
    for way in fire.ways:
        await way.be("well")
    bees.only(_LOOPING)

    def settled() -> bool:
        return lives.outbox.get("active") == len(_LOOPING) and not lives.outbox["pending"]

    await until(settled, f"{len(_LOOPING)} hold, all told", seconds=_CALM)
    # A relapse within the hold, or a last ticket, may still be on its way.
    await asyncio.sleep(HOLD)
    await until(settled, f"{len(_LOOPING)} hold, all told", seconds=_CALM)
    # The service holds ends back for a while, and Alertmanager tells of one when it next looks at the group.
    found = await compared(fire)
    deadline = time.monotonic() + _HEARD
    while found["wrong"] and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        found = await compared(fire)
    return found


async def under_fire(folder: Path, *, kills: int, seed: int, database: str | None = None) -> dict[str, Any]:
    """
    Kill the service so often, let all be calm, and return what was found.

    Args:
        folder: Where everything is.
        kills: How often, after the hour in which nobody can be told.
        seed: Of the weather, the workers' luck, and the moments.
        database: The store's URL; SQLite in ``folder`` by default.
    """
    program = find_program("alertmanager")
    assert program is not None, "this needs the alertmanager program: `make test` fetches it"
    began, chance, messages = time.monotonic(), Random(seed), list[RecordedMessage]()
    recorder = Recorder(messages.append)
    receiver = listen("127.0.0.1", 0, what="the recorder", option="")
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(serve_app(recorder, receiver))
        ports = await stack.enter_async_context(_cluster(program, folder, socket_url(receiver)))
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
            bees.turn()
            await lives.killed(longest, point=point, nth=chance.choice((1, 1, 2)))
        weather.cancel()
        await asyncio.gather(weather, return_exceptions=True)
        fire = Fire(settings, ways, ports, messages, recorder, PEER_TIMEOUT)
        found = await lives.peaceful(_calm(lives, bees, fire))
    deaths = dict(sorted(lives.deaths.items()))
    return {"seed": seed, "seconds": round(time.monotonic() - began, 1), "deaths": deaths, **found}


def main() -> int:
    """Parse the command line, kill, print; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.alerts", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", help="the store's URL, SQLite if none is given")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(
            under_fire(Path(folder), kills=args.kills, seed=args.seed, database=args.database)
        )
    print(json.dumps(found, indent=2))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
