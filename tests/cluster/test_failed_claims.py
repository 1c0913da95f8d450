"""A partition that no process can start does not affect the others."""

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
    """The partition is retried at growing intervals, and starts once it is repaired."""
    cluster.settings["cluster"] = {"partitions": 4}
    old_process = cluster.add()
    await wait_for_shares(client, old_process, lambda shares: shares == {old_process.url: 4})
    await asyncio.to_thread(old_process.stop)
    change(cluster.database, "ALTER TABLE queenright_1.events RENAME TO lost")
    await asyncio.to_thread(old_process.start)
    await wait_for_faults(client, old_process, lambda faults: any("could not" in fault for fault in faults))

    new_process = cluster.add()

    await wait_for_shares(client, old_process, lambda shares: shares.get(old_process.url) == 2)
    change(cluster.database, "ALTER TABLE queenright_1.lost RENAME TO events")
    await wait_for_shares(client, old_process, lambda shares: "none" not in shares)
    failures = sum(
        process.log().count("the service has failed (partition 1)") for process in (old_process, new_process)
    )
    assert failures < 20
