"""
Test the outbox during failures: ``python -m tests.chaos.alerts --seed N --kills N``.

First, two real Alertmanagers are unavailable for an hour on a simulated clock. Then the connections to them
fail in every way, and the service is killed repeatedly, at random moments and at every named point of the
outbox. At the end all faults stop, and the decisions are compared with the accepted alerts and the messages.
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
from tests.chaos.alerts_compared import ObservedAlerts, compare
from tests.chaos.alerts_world import HOUR, ServiceProcesses, SimulatedFleet
from tests.chaos.faulty_proxy import FAULTS, FaultyProxy
from tests.ports import reserve_port
from tests.waiting import until

GROUP_WAIT = 1.0
GROUP_INTERVAL = 10.0
PEER_TIMEOUT = 1.0
HOLD_SECONDS = 5.0
"""
Seconds for which a ticket holds. As by default, this is several times the group wait of Alertmanager and the
time that the second Alertmanager waits for the first, so that both have enough time on a busy machine.
"""
_MAX_BATCHES = 40
"""Maximum number of batches until a process is killed, even if it has not reached its point."""
_SETTLE_SECONDS = 300.0
_MESSAGE_SECONDS = 120.0
"""Time limits in seconds, on a busy machine, until all is notified, and until all messages have arrived."""
_LOOPING_DURING_OUTAGE = (4, 5)
"""Agents that loop in the hour without notifications."""
_LOOPING_AT_END = (0, 1)
"""Agents that loop at the end; their alerts must fire."""


def _load_settings(storage: Path, database: str | None, peers: list[str]) -> Settings:
    return load_settings(
        defaults=DEMO_DEFAULTS | {"storage": storage} | ({"database_url": database} if database else {}),
        alerting={"alertmanager_urls": peers, "late_resolve_seconds": HOLD_SECONDS},
        health_monitoring={
            # Only loops open tickets, nothing intervenes, and each worker has its own message.
            "stall": dict.fromkeys(
                ("idle_seconds", "llm_seconds", "tool_seconds", "unknown_seconds"), 3 * HOUR
            ),
            "judge": {"interval_seconds": 1, "start_grace_seconds": 0.2},
            "tickets": {"hold_seconds": HOLD_SECONDS},
            "intervention": {"enabled": False, "storm": {"workers": 1000}},
        },
    )


@contextlib.asynccontextmanager
async def _run_alertmanagers(program: Path, folder: Path, receiver: str) -> AsyncIterator[list[int]]:
    """Run two Alertmanagers as a cluster, and yield their ports."""
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
    port_stack = contextlib.ExitStack()
    ports = [port_stack.enter_context(reserve_port()) for _ in range(4)]
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
        port_stack.close()


async def _run_hour_without_notifications(
    processes: ServiceProcesses, fleet: SimulatedFleet, proxies: list[FaultyProxy]
) -> None:
    """B76: nobody can be notified for an hour, during which the service is killed and restarted."""
    for proxy in proxies:
        await proxy.set_fault("refuses")
    fleet.set_looping(_LOOPING_DURING_OUTAGE)
    # Even on a slow machine, at least one decision must be made during the outage.
    await processes.run_and_kill(8, active=1)
    for delay in (HOUR / 2, 20.0):
        fleet.change_worker()
        fleet.change_worker()
        fleet.delay = delay
        await processes.run_and_kill(8)
    fleet.delay = 0.0


async def _inject_faults(proxies: list[FaultyProxy], fleet: SimulatedFleet, random: Random) -> None:
    """Change connections and workers at random until cancelled."""
    while True:
        faulty_proxies = random.choice(([], proxies, [random.choice(proxies)]))
        for proxy in proxies:
            await proxy.set_fault(random.choice(FAULTS) if proxy in faulty_proxies else "none")
        for _ in range(random.randrange(1, 5)):
            await asyncio.sleep(random.uniform(0.2, 0.8))
            fleet.change_worker()


async def _stop_faults(
    processes: ServiceProcesses, fleet: SimulatedFleet, observed: ObservedAlerts
) -> dict[str, Any]:
    """Stop all faults, wait until everything is notified, and return the comparison."""
    for proxy in observed.proxies:
        await proxy.set_fault("none")
    fleet.set_looping(_LOOPING_AT_END)

    def is_settled() -> bool:
        return processes.outbox.get("active") == len(_LOOPING_AT_END) and not processes.outbox["pending"]

    await until(is_settled, "all looping agents are notified", seconds=_SETTLE_SECONDS)
    # A relapse within the hold time, or a last ticket, may still be pending.
    await asyncio.sleep(HOLD_SECONDS)
    await until(is_settled, "all looping agents are notified", seconds=_SETTLE_SECONDS)
    # The service delays the ends of alerts, and Alertmanager sends them at the next group evaluation.
    result = await compare(observed)
    deadline = time.monotonic() + _MESSAGE_SECONDS
    while result["differences"] and time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        result = await compare(observed)
    return result


async def run_with_failures(
    folder: Path, *, kills: int, seed: int, database: str | None = None
) -> dict[str, Any]:
    """
    Kill the service ``kills`` times, stop all faults, and return the comparison.

    Args:
        folder: The folder for all files.
        kills: The number of kills after the hour without notifications.
        seed: The seed of the faults, the workers and the times.
        database: The store's URL; SQLite in ``folder`` by default.
    """
    program = find_program("alertmanager")
    assert program is not None, "this needs the alertmanager program: `make test` fetches it"
    started_at, random, messages = time.monotonic(), Random(seed), list[RecordedMessage]()
    recorder = Recorder(messages.append)
    receiver = listen("127.0.0.1", 0, what="the recorder", option="")
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(serve_app(recorder, receiver))
        ports = await stack.enter_async_context(
            _run_alertmanagers(program, folder, make_socket_url(receiver))
        )
        proxies = [
            FaultyProxy(find_free_port("127.0.0.1", 0, what="the proxy", option=""), port) for port in ports
        ]
        for proxy in proxies:
            stack.push_async_callback(proxy.close)
        settings = _load_settings(
            folder / "storage", database, [f"http://127.0.0.1:{proxy.port}" for proxy in proxies]
        )
        (folder / "settings.json").write_text(settings.model_dump_json(), "utf-8")
        fleet = SimulatedFleet(Random(seed + 1))
        processes = await stack.enter_async_context(
            ServiceProcesses(folder / "settings.json", fleet).run_parent()
        )

        await _run_hour_without_notifications(processes, fleet, proxies)
        fault_task = asyncio.create_task(_inject_faults(proxies, fleet, random))
        for number in range(kills):
            point = "" if number % 3 == 2 else POINTS[(number - number // 3) % len(POINTS)]
            batches = _MAX_BATCHES if point else random.randrange(_MAX_BATCHES // 2)
            fleet.change_worker()
            await processes.run_and_kill(batches, point=point, nth=random.choice((1, 1, 2)))
        fault_task.cancel()
        await asyncio.gather(fault_task, return_exceptions=True)
        observed = ObservedAlerts(settings, proxies, ports, messages, recorder, PEER_TIMEOUT)
        result = await processes.run_and_stop(_stop_faults(processes, fleet, observed))
    deaths = dict(sorted(processes.deaths.items()))
    return {"seed": seed, "seconds": round(time.monotonic() - started_at, 1), "deaths": deaths, **result}


def main() -> int:
    """Run the command, print the comparison, and return 1 if there is a difference."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.alerts", description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--database", help="URL of the store (default: SQLite)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(
            run_with_failures(Path(folder), kills=args.kills, seed=args.seed, database=args.database)
        )
    print(json.dumps(result, indent=2))
    return 1 if result["differences"] else 0


if __name__ == "__main__":
    sys.exit(main())
