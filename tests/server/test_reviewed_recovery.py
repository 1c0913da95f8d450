"""A task at its recovery limit that a person approves over HTTP or on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from queenright.health.interventions.target import Target
from queenright.health.recovery.respawner import CheckpointRef, RespawnRefusedError
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.serving import RunningService
from queenright.server.settings import Settings
from tests.server.conftest import demo_settings
from tests.server.test_cli_acting import queenright
from tests.waiting import until

TASK = "report-7"


class FailingRespawner:
    """A respawner that can reach each worker, but fails to start any."""

    def can_reach(self, target: Target) -> bool:
        return True

    async def chain(self, target: Target) -> Sequence[CheckpointRef]:
        return []

    async def respawn(
        self,
        target: Target,
        checkpoint: CheckpointRef | None,
        *,
        task_id: str,
        attempt: int,
        note: str,
        repeatable: bool,
        may_start_over: bool,
    ) -> Target:
        raise RespawnRefusedError("the disk is full")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Return settings with one attempt per task and no delay. The test itself reports the crashes."""
    base_settings = demo_settings(tmp_path / "storage", orchestrator="none")
    limits = base_settings.health_monitoring.recovery.model_copy(
        update={"max_attempts_per_task": 1, "backoff_seconds": (0.001,)}
    )
    interventions = base_settings.health_monitoring.intervention.model_copy(
        update={"enabled": False, "quiet_seconds": 0.0}
    )
    health = base_settings.health_monitoring.model_copy(
        update={"recovery": limits, "intervention": interventions}
    )
    return base_settings.model_copy(update={"health_monitoring": health})


async def report_crash(running: RunningService) -> None:
    crash_time = running.service.clock()
    for kind, data in (
        (EventType.EXECUTION_STARTED, {"task_id": TASK, "repeatable": True}),
        (EventType.EXECUTION_FAILED, {"error_type": "Crash"}),
    ):
        event = AgentEvent(
            type=kind, time=crash_time, agent_id="bee", session_id="s1", incarnation_id="i1", data=data
        )
        await running.service.ingest([event])


async def test_refusal_for_a_worker_in_another_process_names_a_remedy(running: RunningService) -> None:
    await report_crash(running)

    refused_result = await queenright(running, "recover", TASK, "--reviewed")
    list_result = await queenright(running, "recoveries")

    assert refused_result.code == 1
    assert "nothing here can start its worker: it runs in another process" in refused_result.out
    assert refused_result.out.rstrip().endswith("health_monitoring.recovery.webhook_url")
    assert "no attempt  report-7" in list_result.out


async def test_review_by_a_person_allows_an_attempt_above_the_task_limit(
    running: RunningService, http: httpx.AsyncClient
) -> None:
    """002 §11: after the last attempt, a person must act, and the audit names the person."""
    service = running.service
    recovery = service.remediation.recovery
    recovery._starter._respawners = [FailingRespawner()]
    await report_crash(running)

    async def request_recovery(**fields: object) -> bool:
        response = await http.post("/api/recoveries", json={"task_id": TASK, "by": "ada"} | fields)
        assert response.status_code == 202
        is_accepted: bool = response.json()["accepted"]
        await until(lambda: not recovery.active(), "the attempt has ended")
        return is_accepted

    assert [
        await request_recovery(),
        await request_recovery(),
        await request_recovery(reviewed=True),
        await request_recovery(),
    ] == [True, False, True, False]
    refused_result = await queenright(running, "recover", TASK, "--by", "bob")
    assert (refused_result.code, "limit for one task" in refused_result.out) == (1, True)
    approval = await queenright(running, "recover", TASK, "--by", "bob", "--reviewed")
    assert (approval.code, approval.out.startswith("Attempt 3 starts")) == (0, True)
    await until(lambda: not recovery.active(), "the attempt has ended")

    body = [event for event in (await http.get("/api/recoveries")).json()["recoveries"] if event["attempt"]]
    assert [(event["by"], event["reviewed"]) for event in body] == [
        ("bob", True),
        ("ada", True),
        ("ada", False),
    ]
    events = await service.store.history(types=[EventType.RECOVERY_INITIATED])
    assert [(event.data["by"], event.data["reviewed"]) for event in events][-1] == ("bob", True)
    list_result = await queenright(running, "recoveries")
    assert "attempt 3 from the start" in list_result.out
    await until(lambda: service.recoveries.latest[0].attempt == 3, "the console shows the recovery")
    recoveries = (await http.get("/api/status")).json()["acting"]["recoveries"]
    assert max(recovery["attempt"] for recovery in recoveries) == 3
