"""The status that a process of a cluster reports about itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from queenright.server.cluster.member import ClusterMember, cluster_member
from queenright.server.cluster.stream import NatsConnection
from queenright.server.settings import Settings, load_settings
from tests.databases import Postgres
from tests.waiting import until


@pytest.fixture
def settings(tmp_path: Path, postgres: Postgres) -> Iterator[Settings]:
    database = postgres.migrated()
    yield load_settings(
        storage=tmp_path / "storage",
        database=database,
        http={"port": 0},
        otlp={"port": 0},
        cluster={"nats": "nats://127.0.0.1:1", "host": "127.0.0.1"},
    )
    postgres.drop(database)


async def test_failed_background_task_is_a_fault_of_the_process(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise nobody would learn why it does not reconnect to NATS."""

    async def fail(self: object) -> None:
        raise RuntimeError("cannot go on")

    monkeypatch.setattr(NatsConnection, "run", fail)
    monkeypatch.setattr(ClusterMember, "run", fail)
    monkeypatch.setattr(ClusterMember, "watch_settings", fail)

    async with cluster_member(settings) as member:
        names = ("nats-connection", "cluster-view", "settings-file")
        stopped = [f"{name} has stopped" for name in names]
        await until(lambda: member.ready()[:3] == stopped, "the tasks are reported")
        assert member.faults()[:3] == stopped

    assert caplog.text.count("RuntimeError: cannot go on") == 3


async def test_status_is_available_without_a_nats_connection_attempt(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: object) -> None:
        raise RuntimeError("cannot go on")

    monkeypatch.setattr(NatsConnection, "run", fail)

    async with cluster_member(settings) as member:
        status = await member.status()

    assert [found.member_id for found in status.members] == [status.answered_by]
    assert status.backlog is None
    assert "NATS cannot take telemetry" in status.faults
