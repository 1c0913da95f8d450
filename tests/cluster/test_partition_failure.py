"""What a process does when it cannot start or continue to run a partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock, Mock

import pytest

from queenright.health.cluster.cluster_lease import ClusterLease, Member
from queenright.health.store.database import DatabaseUnavailableError
from queenright.health.store.engines import parse_address
from queenright.health.store.store import StoreError
from queenright.server.cluster.fleet import ClusterFleet
from queenright.server.cluster.partition import Partition
from queenright.server.service import Service
from queenright.server.settings import Settings
from tests.waiting import until


def make_partition(lease: AsyncMock) -> Partition:
    return Partition(
        0,
        ports=Mock(settings=Settings()),
        stream=Mock(),
        lease=lease,
        starting=asyncio.Semaphore(1),
        fleet=None,
    )


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (StoreError("missing privilege"), "missing privilege"),
        (RuntimeError("no thread"), "RuntimeError: no thread"),
        (DatabaseUnavailableError("connection refused"), None),
    ],
    ids=["store", "other", "database unavailable"],
)
async def test_unavailable_database_is_no_failure_of_the_process(
    error: Exception, failure: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B117: the process runs its partitions again as soon as the database is back."""

    @asynccontextmanager
    async def run_service(self: Partition) -> AsyncIterator[Service]:
        raise error
        yield

    monkeypatch.setattr(Partition, "_run_service", run_service)
    partition = make_partition(AsyncMock())

    partition.claim()
    await partition.wait_released()

    assert partition.failure == failure


async def test_fleet_state_cannot_be_read_while_the_database_is_unavailable() -> None:
    """A service reads this state when it starts; the failure is not one of the process either."""
    member = Member(member_id="one", host="127.0.0.1", api_port=1, otlp_port=2, version="1", partitions=2)
    lease = ClusterLease(parse_address("postgresql://127.0.0.1:1/none"), member)
    state = ClusterFleet(lease).get_partition_state(0)

    for read_state in (state.read_storm, state.read_emergency_stop):
        with pytest.raises(DatabaseUnavailableError, match="the database cannot be reached"):
            await read_state()


async def test_partition_whose_lease_cannot_be_renewed_is_released_for_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B116: otherwise another process would take over when the lease expires, while this one still serves."""

    @asynccontextmanager
    async def run_service(self: Partition) -> AsyncIterator[Service]:
        self._token = "token"
        self._claim_event.set()
        yield Mock()

    async def serve(self: Partition, service: Service, stack: object) -> None:
        self.service = service

    monkeypatch.setattr(Partition, "_run_service", run_service)
    monkeypatch.setattr(Partition, "_serve", serve)
    lease = AsyncMock()
    lease.renew.side_effect = RuntimeError("no memory")
    partition = make_partition(lease)

    partition.claim()
    await until(lambda: not partition.is_running, "the partition is released", seconds=20)
    partition.claim()

    assert "no memory" in caplog.text
    assert partition.failure == "RuntimeError: no memory"
    assert not partition.is_running
