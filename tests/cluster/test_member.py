"""What a process of a cluster reports of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from queenright.server.cluster.member import ClusterMember, cluster_member
from queenright.server.cluster.stream import NatsConnection
from queenright.server.settings import load_settings
from tests.databases import Postgres
from tests.waiting import until


async def test_background_task_that_failed_is_a_fault_of_the_process(
    tmp_path: Path, postgres: Postgres, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else nobody learns why it does not connect to NATS again."""

    async def fail(self: object) -> None:
        raise RuntimeError("cannot go on")

    monkeypatch.setattr(NatsConnection, "run", fail)
    monkeypatch.setattr(ClusterMember, "run", fail)
    monkeypatch.setattr(ClusterMember, "watch_settings", fail)
    database = postgres.migrated()
    settings = load_settings(
        storage=tmp_path / "storage",
        database=database,
        http={"port": 0},
        otlp={"port": 0},
        cluster={"nats": "nats://127.0.0.1:1", "host": "127.0.0.1"},
    )

    async with cluster_member(settings) as member:
        names = ("nats-connection", "cluster-view", "settings-file")
        stopped = [f"{name} has stopped" for name in names]
        await until(lambda: member.ready()[:3] == stopped, "the tasks are reported")
        assert member.faults()[:3] == stopped

    assert caplog.text.count("RuntimeError: cannot go on") == 3
    postgres.drop(database)
