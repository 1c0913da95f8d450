"""Processes of a cluster are killed and paused at random, under load: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.cluster.conftest import Cluster, Process
from tests.cluster.test_takeover import Sender, stored_calls, tool_spans, wait_for_calls
from tests.databases import Postgres, connected

ROUNDS = 12

pytestmark = pytest.mark.asyncio


@pytest.fixture
def cluster_settings() -> dict[str, Any]:
    return {
        "health_monitoring": {
            "judge": {"interval_seconds": 5, "start_grace_seconds": 4, "triage_timeout_seconds": 10},
            "tickets": {"hold_seconds": 1},
        },
        # Nobody listens there: what is written for it can be counted.
        "alerting": {"alertmanager_urls": ["http://127.0.0.1:1"]},
    }


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    """A server that may be killed."""
    server = Postgres()
    yield server
    server.remove()


async def test_random_kills_and_pauses_lose_and_double_nothing(
    cluster: Cluster, client: httpx.AsyncClient, record_property: Any
) -> None:
    """B118: whatever is killed or paused, each event is stored once, and each trouble is one ticket."""
    chance = random.Random(20)
    processes = [cluster.add() for _ in range(3)]
    await cluster.owner()
    sender = Sender(client, processes)
    is_over = asyncio.Event()

    async def load(agent: str) -> None:
        while not is_over.is_set():
            await sender.send(tool_spans(agent, f"{agent}-1", 3, arguments='{"query": "again"}'))
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(load(f"clerk-{number}"))  # each repeats one call
        for _ in range(ROUNDS):
            await disturb(cluster, chance)
        is_over.set()

    found = await wait_for_calls(cluster, sender.acknowledged)
    await cluster.owner()
    assert len(found) == len(set(found))
    assert len(stored_calls(cluster)) == sender.acknowledged
    record_property("acknowledged", sender.acknowledged)
    with connected(cluster.database) as conn:
        tickets = conn.exec_driver_sql("SELECT session_id, count(*) FROM tickets GROUP BY 1").fetchall()
        alerts = conn.exec_driver_sql("SELECT ticket_id, count(*) FROM outbox GROUP BY 1").fetchall()
    assert sorted(tickets) == [(f"clerk-{number}-1", 1) for number in range(4)]
    assert {count for _, count in alerts} == {1}, alerts
    for process in processes:
        assert "Traceback" not in process.log(), process.log()


async def disturb(cluster: Cluster, chance: random.Random) -> None:
    """Kill or pause a process, NATS or the database, once the cluster has an owner."""
    what = chance.choice(
        ["kill owner", "kill owner", "pause owner", "kill standby", "kill nats", "kill database"]
    )
    owner = await cluster.owner()
    standbys = [process for process in cluster.processes if process is not owner]
    if what == "kill nats":
        cluster.nats.kill()
        await asyncio.sleep(chance.uniform(0, 2))
        cluster.nats.start()
    elif what == "kill database":
        await asyncio.to_thread(cluster.postgres.crash)
        await asyncio.sleep(chance.uniform(0, 2))
        await asyncio.to_thread(cluster.postgres.start)
    elif what == "pause owner":
        owner.signal(signal.SIGSTOP)
        await cluster.owner(other_than=owner)
        owner.signal(signal.SIGCONT)
    else:
        victim = owner if what == "kill owner" else chance.choice(standbys)
        await restart(victim)
    await asyncio.sleep(chance.uniform(0, 1))


async def restart(process: Process) -> None:
    process.kill()
    await asyncio.to_thread(process.start)
