"""
Cut the owner of a cluster off from PostgreSQL and NATS: ``python -m tests.cluster.network_cut FOLDER``.

Run it in a private network (`private_command`). It prints the results as JSON.
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

from tests.cluster.chaos import add_member, cut_off, kill_all, run_servers
from tests.cluster.conftest import Cluster
from tests.cluster.test_takeover import Sender, make_tool_spans, wait_for_calls, wait_for_status
from tests.isolation import isolate


async def cut_owner(folder: Path) -> dict[str, Any]:
    """Cut the owner off until the other process has stored events, reconnect it, and return the results."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(trust_env=False, timeout=5))
        postgres, nats = stack.enter_context(run_servers(folder, "0.0.0.0"))
        cluster = Cluster(folder, postgres, postgres.migrated(), nats, {})
        stack.callback(kill_all, cluster)
        owner_member = await asyncio.to_thread(add_member, cluster, 1)
        await cluster.owner()
        other_member = await asyncio.to_thread(add_member, cluster, 2)
        sender = Sender(client, [other_member.process])
        await sender.send(make_tool_spans("clerk", "order-7", 5))
        await wait_for_calls(cluster, 5)

        cut_at = time.monotonic()
        async with cut_off([owner_member.postgres, owner_member.nats]):
            successor = await cluster.owner(other_than=owner_member.process)
            seconds = time.monotonic() - cut_at
            await sender.send(make_tool_spans("clerk", "order-7", 5))
            await wait_for_calls(cluster, 10)
            response = await client.post(
                f"{owner_member.process.otlp_url}/v1/traces",
                json=make_tool_spans("clerk", "order-7", 5),
                timeout=30,
            )
        await wait_for_status(client, owner_member.process, owner=other_member.process)
        await Sender(client, [owner_member.process]).send(make_tool_spans("clerk", "order-7", 5))
        calls = await wait_for_calls(cluster, 15)
        return {
            "is_taken_over": successor is other_member.process,
            "seconds": seconds,
            "refused": response.status_code,
            "calls": len(calls),
            "different_calls": len(set(calls)),
            "tracebacks": [
                member.process.log()
                for member in (owner_member, other_member)
                if "Traceback" in member.process.log()
            ],
        }


if __name__ == "__main__":
    isolate()
    print(json.dumps(asyncio.run(cut_owner(Path(sys.argv[1])))))
