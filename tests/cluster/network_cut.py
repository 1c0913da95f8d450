"""
Cut the owner of a cluster off from PostgreSQL and NATS: ``python -m tests.cluster.network_cut FOLDER``.

Run it in a private network (`private_command`). It prints the course of events.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from tests.cluster.chaos import add_lane, cut_off, kill_all, running_servers
from tests.cluster.conftest import Cluster
from tests.cluster.test_takeover import Sender, tool_spans, wait_for_calls, wait_for_status
from tests.isolation import isolate


async def cut_owner(folder: Path) -> dict[str, Any]:
    """Cut the owner off until the other process has stored events, then reconnect it."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=5))
        postgres, nats = stack.enter_context(running_servers(folder, "0.0.0.0"))
        cluster = Cluster(folder, postgres, postgres.migrated(), nats, {})
        stack.callback(kill_all, cluster)
        first = await asyncio.to_thread(add_lane, cluster, 1)
        await cluster.owner()
        second = await asyncio.to_thread(add_lane, cluster, 2)
        sender = Sender(client, [second.process])
        await sender.send(tool_spans("clerk", "order-7", 5))
        await wait_for_calls(cluster, 5)

        start = time.monotonic()
        async with cut_off([first.postgres, first.nats]):
            owner = await cluster.owner(other_than=first.process)
            seconds = time.monotonic() - start
            await sender.send(tool_spans("clerk", "order-7", 5))
            await wait_for_calls(cluster, 10)
            refused = await client.post(
                f"{first.process.otlp_url}/v1/traces", json=tool_spans("clerk", "order-7", 5), timeout=30
            )
        await wait_for_status(client, first.process, owner=second.process)
        await Sender(client, [first.process]).send(tool_spans("clerk", "order-7", 5))
        calls = await wait_for_calls(cluster, 15)
        return {
            "is_taken_over": owner is second.process,
            "seconds": seconds,
            "refused": refused.status_code,
            "calls": len(calls),
            "different_calls": len(set(calls)),
            "tracebacks": [
                lane.process.log() for lane in (first, second) if "Traceback" in lane.process.log()
            ],
        }


if __name__ == "__main__":
    isolate()
    print(json.dumps(asyncio.run(cut_owner(Path(sys.argv[1])))))
