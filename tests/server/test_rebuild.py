"""The workers after a start, which are rebuilt from the end of a log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from queenright.health.interventions.ladder import LadderInputs, next_step
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.store.store import Store
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.ops.rebuild import rebuild_workers

SETTINGS = HealthSettings()
START_TIME = 1_700_000_000.0
DAY = 86_400.0


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    yield store
    await store.close()


def make_event(type_: EventType, seconds: float, incarnation: str = "first", **data: Any) -> AgentEvent:
    return AgentEvent(
        type=type_,
        time=START_TIME + seconds,
        agent_id="bee",
        session_id="s",
        incarnation_id=incarnation,
        node_id="n",
        data=data,
    )


def rebuild_monitor(store: Store, since: float, end_time: float) -> HealthMonitor:
    monitor = HealthMonitor(SETTINGS)
    store.read_now(
        lambda conn: rebuild_workers(conn, monitor, since=START_TIME + since, now=START_TIME + end_time)
    )
    monitor.handle_clock_jump(START_TIME + end_time)
    return monitor


INCARNATION = (
    make_event(EventType.EXECUTION_STARTED, 0, start_records=True),
    make_event(EventType.STEP_COMPLETED, 10, verdict="ACCEPT"),
)
RECOVERY_EVENTS = make_event(
    EventType.RECOVERY_COMPLETED, 900, recovery_id="r", new_incarnation_id="second", new_session_id="s"
)


@pytest.mark.parametrize(
    "end_event",
    [
        make_event(EventType.AGENT_TERMINATED, 300, reason="it hangs"),
        make_event(EventType.EXECUTION_FAILED, 300, error_type="OSError"),
    ],
    ids=["terminated", "failed"],
)
async def test_incarnation_without_events_is_not_alive_a_day_later(
    store: Store, end_event: AgentEvent
) -> None:
    """
    B67: the log contains its recovery, but no longer the end of the previous incarnation.

    The session has ended, so no incarnation that never started is nudged or terminated.
    """
    failure = make_event(
        EventType.RECOVERY_FAILED, 1800, "second", reason="it sent no events", exhausted=False
    )
    await store.append([*INCARNATION, end_event, RECOVERY_EVENTS, failure])

    monitor = rebuild_monitor(store, since=600, end_time=600 + DAY)
    for check_time in (600 + DAY + 600, 600 + 2 * DAY):
        monitor.advance(START_TIME + check_time)
        worker = monitor.get("bee", "s")
        if worker is None:
            continue  # The session has ended and is removed.
        assert worker.vitals.has_ended
        assert worker.vitals.status in (WorkerStatus.TERMINATED, WorkerStatus.FAILED)
        assert worker.vitals.incarnation_id == "first"
        action = next_step(None, LadderInputs.of(worker, SETTINGS), SETTINGS).action
        assert action is None or worker.vitals.status is WorkerStatus.FAILED


async def test_incarnation_with_recent_events_is_alive_a_day_later(store: Store) -> None:
    end_event = make_event(EventType.AGENT_TERMINATED, 300, reason="it hangs")
    result = make_event(EventType.EXECUTION_STARTED, 950, "second", start_records=True)
    step = make_event(EventType.STEP_COMPLETED, 960, "second", verdict="ACCEPT")
    await store.append([*INCARNATION, end_event, RECOVERY_EVENTS, result, step])

    worker = rebuild_monitor(store, since=600, end_time=1000).get("bee", "s")
    assert worker is not None
    assert not worker.vitals.has_ended
    assert worker.vitals.incarnation_id == "second"


async def test_abandoned_task_keeps_its_incarnation_a_day_later(store: Store) -> None:
    """An abandoned recovery is about a certain incarnation, not about one without an id."""
    end_event = make_event(EventType.AGENT_TERMINATED, 300, reason="it hangs")
    abandoned_event = make_event(EventType.RECOVERY_FAILED, 900, reason="the limit", exhausted=True)
    await store.append([*INCARNATION, end_event, abandoned_event])

    worker = rebuild_monitor(store, since=600, end_time=1000).get("bee", "s")
    assert worker is not None
    assert worker.vitals.status is WorkerStatus.TERMINATED
    assert worker.vitals.incarnation_id == "first"
    assert worker.vitals.has_failed_recovery
