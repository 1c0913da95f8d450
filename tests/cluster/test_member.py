"""The status that a process of a cluster reports about itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from queenright.server.cluster.member import ClusterMember, run_cluster_member
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
    """Otherwise nobody would learn why the process does not reconnect to NATS."""

    async def fail(self: object) -> None:
        raise RuntimeError("no file descriptors left")

    monkeypatch.setattr(NatsConnection, "run", fail)
    monkeypatch.setattr(ClusterMember, "run", fail)
    monkeypatch.setattr(ClusterMember, "watch_settings", fail)

    async with run_cluster_member(settings) as member:
        names = ("nats-connection", "cluster-view", "settings-file")
        expected_faults = [f"{name} has stopped" for name in names]
        await until(lambda: member.ready()[:3] == expected_faults, "the stopped tasks are reported")
        assert member.list_faults()[:3] == expected_faults

    assert caplog.text.count("RuntimeError: no file descriptors left") == 3


async def test_status_is_available_before_the_first_connection_to_nats(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: object) -> None:
        raise RuntimeError("no file descriptors left")

    monkeypatch.setattr(NatsConnection, "run", fail)

    async with run_cluster_member(settings) as member:
        status = await member.status()

    assert [listed_member.member_id for listed_member in status.members] == [status.answered_by]
    assert status.backlog is None
    assert "NATS cannot take telemetry" in status.faults
