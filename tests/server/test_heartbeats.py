"""Heartbeats without a session id, and the sessions that they belong to."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from queenright.api.agents import AgentRow
from queenright.cli.commands.fleet import _print_agents
from queenright.health.monitoring.heartbeat import Heartbeat, InvalidHeartbeatError, parse_heartbeat
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.build import build
from queenright.server.settings import Settings


class ClockedService:
    """A service and its clock."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    async def start(self, storage: Path) -> None:
        settings = Settings.model_validate({"storage": storage})
        self.service = await build(settings, clock=lambda: self.now)
        await self.service.start()

    async def send_event(
        self, kind: EventType, session: str = "run", seconds: float = 1.0, **data: Any
    ) -> None:
        self.now += seconds
        event = AgentEvent(
            type=kind,
            time=self.now,
            agent_id="bee",
            session_id=session,
            incarnation_id="one",
            data=data,
        )
        await self.service.ingest([event])

    async def send_heartbeat(self, seconds: float = 1.0, **heartbeat_fields: Any) -> None:
        self.now += seconds
        await self.service.health.record_heartbeat(Heartbeat(agent_id="bee", **heartbeat_fields))

    def heartbeat_ages(self) -> dict[str, float | None]:
        """Return the age in seconds of the last heartbeat of each open session."""
        return {
            worker.vitals.session_id: None
            if worker.vitals.last_heartbeat is None
            else self.now - worker.vitals.last_heartbeat
            for worker in self.service.monitor.of_agent("bee")
            if not worker.vitals.has_ended
        }


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[ClockedService]:
    service = ClockedService()
    await service.start(tmp_path / "storage")
    yield service
    await service.service.stop()


async def test_heartbeat_of_an_unknown_worker_starts_a_session(running: ClockedService) -> None:
    await running.send_heartbeat()
    await running.send_heartbeat(task_id="nectar", session_id="named")

    assert running.heartbeat_ages() == {"default": 1.0, "named": 0.0}


async def test_heartbeat_after_a_run_ended_starts_a_new_session(running: ClockedService) -> None:
    await running.send_event(EventType.EXECUTION_STARTED)
    await running.send_heartbeat()
    await running.send_event(EventType.EXECUTION_COMPLETED)

    await running.send_heartbeat(task_id="nectar")

    assert running.heartbeat_ages() == {"nectar": 0.0}
    last_heartbeat = await running.service.health.get_last_heartbeat("bee")
    assert last_heartbeat is not None
    assert (last_heartbeat.session_id, last_heartbeat.timestamp) == ("nectar", running.now)
    assert (await running.service.health.get_agent_health("bee")).session_id == "nectar"


@pytest.mark.parametrize("expected_ages", [{}, {"task_id": "run"}])
async def test_heartbeat_sent_before_the_end_of_a_run_starts_no_session(
    running: ClockedService, expected_ages: dict[str, Any]
) -> None:
    await running.send_event(EventType.EXECUTION_STARTED)
    await running.send_event(EventType.EXECUTION_COMPLETED)
    end_time = running.now

    await running.send_heartbeat(seconds=59, **expected_ages)
    assert running.heartbeat_ages() == {}

    await running.send_heartbeat(seconds=1, timestamp=end_time - 5, **expected_ages)
    assert running.heartbeat_ages() == {}

    await running.send_heartbeat(**expected_ages)
    assert list(running.heartbeat_ages().values()) == [0.0]


async def test_session_after_each_end_has_a_different_name(running: ClockedService) -> None:
    for session in ("default", "default-2", "default-3"):
        await running.send_heartbeat(seconds=100)
        assert running.heartbeat_ages() == {session: 0.0}
        await running.send_event(EventType.EXECUTION_COMPLETED, session)
    assert running.heartbeat_ages() == {}


async def test_heartbeat_session_does_not_stall_after_a_run_starts(running: ClockedService) -> None:
    await running.send_heartbeat(interval=300)
    await running.send_event(EventType.EXECUTION_STARTED)

    await running.send_heartbeat(interval=300)

    assert running.heartbeat_ages() == {"default": 0.0, "run": 0.0}


async def test_heartbeat_with_an_incarnation_id_continues_the_session(running: ClockedService) -> None:
    await running.send_event(EventType.EXECUTION_STARTED)
    await running.send_event(EventType.EXECUTION_COMPLETED)

    await running.send_heartbeat(incarnation_id="two")

    assert running.heartbeat_ages() == {"run": 0.0}


# -- names in heartbeats ------------------------------------------------------------------------

ESCAPES = "t\x1b]0;own\x07"


async def test_task_and_phase_are_stored_without_control_characters(running: ClockedService) -> None:
    await running.send_heartbeat(task_id=ESCAPES, phase=ESCAPES, progress_indicator=ESCAPES)

    [worker] = running.service.monitor.of_agent("bee")
    assert worker.vitals.beat is not None
    fields = (worker.vitals.task_id, worker.vitals.session_id, worker.vitals.beat.phase)
    assert all(field.isprintable() for field in (*fields, worker.vitals.beat.progress_indicator)), fields
    assert worker.vitals.task_id == "t"


async def test_names_in_stored_telemetry_are_cleaned(running: ClockedService) -> None:
    await running.send_event(EventType.EXECUTION_STARTED, task_id=ESCAPES)

    [worker] = running.service.monitor.of_agent("bee")
    assert worker.vitals.task_id == "t"


@pytest.mark.parametrize("name", ["\u200b", "\ufeff", ".", "..", "\u3164"])
def test_worker_without_a_printable_name_is_rejected(name: str) -> None:
    with pytest.raises(InvalidHeartbeatError, match=r"printable characters; '\.' and '\.\.' are"):
        parse_heartbeat(json.dumps({"agent_id": name}))


def test_terminal_list_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"state": "healthy", "outcome": "", "ended": False, "steps": 1, "bad_steps": 0, "findings": []}
    row: dict[str, Any] = counts | {"waiting": ESCAPES, "activity": ESCAPES, "question": ESCAPES}
    row |= {"limited_until": None, "reason": "", "agent_id": f"a{ESCAPES}"}
    row |= {"session_id": f"s{ESCAPES}", "task_id": f"k{ESCAPES}\u202e"}

    _print_agents([AgentRow.model_construct(**row)], wide=True)

    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())
