"""What a process notes when it cannot run a partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock, Mock

import pytest

from queenright.health.store.database import DatabaseUnavailableError
from queenright.health.store.store import StoreError
from queenright.server.cluster.partition import Partition
from queenright.server.service import Service
from queenright.server.settings import Settings


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (StoreError("missing privilege"), "missing privilege"),
        (RuntimeError("no thread"), "RuntimeError: no thread"),
        (DatabaseUnavailableError("connection refused"), None),
    ],
    ids=["store", "other", "database away"],
)
async def test_database_that_is_away_is_no_failure_of_the_process(
    error: Exception, failure: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B117: it runs partitions again at once when the database is back."""

    @asynccontextmanager
    async def run_service(self: Partition) -> AsyncIterator[Service]:
        raise error
        yield

    monkeypatch.setattr(Partition, "_run_service", run_service)
    partition = Partition(
        0,
        ports=Mock(settings=Settings()),
        stream=Mock(),
        lease=AsyncMock(),
        starting=asyncio.Semaphore(1),
        fleet=None,
    )

    partition.claim()
    await partition.wait_ended()

    assert partition.failure == failure
