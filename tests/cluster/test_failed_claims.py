"""A partition that no process can start."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.cluster.conftest import Cluster
from tests.cluster.test_partitions import wait_for_faults, wait_for_shares
from tests.databases import change

pytestmark = pytest.mark.asyncio


async def test_unstartable_partition_does_not_affect_the_others(
    cluster: Cluster, client: httpx.AsyncClient
) -> None:
    """It is retried at growing intervals, and starts once it is repaired."""
    cluster.settings["cluster"] = {"partitions": 4}
    first = cluster.add()
    await wait_for_shares(client, first, lambda found: found == {first.url: 4})
    await asyncio.to_thread(first.stop)
    change(cluster.database, "ALTER TABLE queenright_1.events RENAME TO lost")
    await asyncio.to_thread(first.start)
    await wait_for_faults(client, first, lambda faults: any("could not" in fault for fault in faults))

    second = cluster.add()

    await wait_for_shares(client, first, lambda found: found.get(first.url) == 2)
    change(cluster.database, "ALTER TABLE queenright_1.lost RENAME TO events")
    await wait_for_shares(client, first, lambda found: "none" not in found)
    failures = sum(process.log().count("the service has failed (partition 1)") for process in (first, second))
    assert failures < 20
