"""The health of runs whose client or program was killed or hangs, in simulated time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from queenright.health.findings import FindingKind
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.instrumentation.names import Phase
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.telemetry.assembler import Assembler
from tests.clients.clients import CLIENTS
from tests.clients.fixtures import BEGAN, FOLDER, Fixture, Record, load_fixture
from tests.frameworks.fixtures import fixture_path
from tests.frameworks.fixtures import load_fixture as load_framework
from tests.frameworks.pairs import PAIRS
from tests.server.telemetry.replay import decode_record

SETTINGS = HealthSettings()
DEAD_WORKER_SECONDS = SETTINGS.tickets.dead_worker_seconds
ABANDONED_RUN_SECONDS = SETTINGS.tickets.abandoned_run_seconds
SILENCE_SECONDS = 2 * SETTINGS.stall.unknown_seconds
WATCHED_PAIRS = [pair.name for pair in PAIRS.values() if "watched" in pair.variants]
"""Programs that can report open work; those for Node cannot."""
PERMISSION_FIXTURE = FOLDER / "claude-code" / "permission.json"


def replay_into_monitor(
    records: Sequence[Record],
) -> tuple[HealthMonitor, VitalSigns, float, dict[str, float | None]]:
    """Return the monitor, its only worker, the last time, and the report interval of each process."""
    monitor, assembler, report_intervals = HealthMonitor(SETTINGS), Assembler(), dict[str, float | None]()
    now = BEGAN
    for record in records:
        now = BEGAN + record.at
        batch = decode_record(record, assembler)
        assembler.duplicates.finish_storing(batch.identities, is_stored=True)
        for event in batch.events:
            monitor.apply(event, now)
        for incarnation, interval in batch.report_intervals.items():
            monitor.record_process_alive(incarnation, now, interval)
            report_intervals[incarnation] = interval or report_intervals.get(incarnation)
    [worker] = monitor.workers()
    return monitor, worker.vitals, now, report_intervals


def list_records_until_end(fixture: Fixture) -> list[Record]:
    return [record for record in fixture.records if record.at <= fixture.ended_at]


def has_ticketed_stall(monitor: HealthMonitor) -> bool:
    return any(
        finding.kind is FindingKind.STALL and finding.ticket
        for worker in monitor.workers()
        for finding in worker.findings
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_killed_coding_agent_ends_as_unknown_and_its_finding_is_cleared(client: str) -> None:
    """B88: until it counts as dead, it looks like an agent with a hanging tool, and has a ticket."""
    monitor, vitals, now, _ = replay_into_monitor(
        list_records_until_end(load_fixture(FOLDER / client / "killed.json"))
    )

    monitor.sweep(now + SILENCE_SECONDS)
    assert has_ticketed_stall(monitor)
    assert not vitals.has_ended

    monitor.sweep(now + SILENCE_SECONDS + DEAD_WORKER_SECONDS)
    assert (vitals.status, has_ticketed_stall(monitor)) == (WorkerStatus.UNKNOWN, False)


@pytest.mark.parametrize("pair", PAIRS)
def test_killed_program_ends_as_unknown_once_its_process_is_known_gone(pair: str) -> None:
    """B88: if an open call is known, the run ends without a ticket; otherwise an hour after it gets one."""
    for name in ("killed", "killed-watched") if pair in WATCHED_PAIRS else ("killed",):
        if records := list_records_until_end(
            load_framework(fixture_path(pair, name))
        ):  # some programs were killed before they sent anything
            monitor, vitals, now, report_intervals = replay_into_monitor(records)
            is_known_gone = vitals.phase in (Phase.LLM, Phase.TOOL) and any(report_intervals.values())
            if not is_known_gone:
                monitor.sweep(now + SILENCE_SECONDS)
                assert has_ticketed_stall(monitor)

            monitor.sweep(now + (120 if is_known_gone else SILENCE_SECONDS + ABANDONED_RUN_SECONDS))

            assert (vitals.status, has_ticketed_stall(monitor)) == (WorkerStatus.UNKNOWN, False)


@pytest.mark.parametrize("pair", WATCHED_PAIRS)
def test_hanging_program_keeps_its_finding_while_its_process_reports_open_work(pair: str) -> None:
    """B88: the process does not count as gone while it reports."""
    monitor, vitals, now, report_intervals = replay_into_monitor(
        list_records_until_end(load_framework(fixture_path(pair, "hang_first-watched")))
    )
    for minute in range(24 * 60):
        for incarnation, interval in report_intervals.items():
            monitor.record_process_alive(incarnation, now + 60 * minute, interval)
        if minute % 15 == 0:
            monitor.sweep(now + 60 * minute)

    assert has_ticketed_stall(monitor)
    assert not vitals.has_ended


def test_session_waiting_for_its_user_ends_after_a_day_and_resumes_on_return() -> None:
    """B88, B95: the laptop may be closed meanwhile; the wait itself is never a finding."""
    records = list_records_until_end(load_fixture(PERMISSION_FIXTURE))
    monitor, vitals, now, _ = replay_into_monitor(records)
    assert vitals.waiting is not None

    monitor.sweep(now + DEAD_WORKER_SECONDS - 60)
    assert not vitals.has_ended
    assert not any(worker.findings for worker in monitor.workers())
    monitor.sweep(now + DEAD_WORKER_SECONDS + 60)
    assert vitals.status is WorkerStatus.UNKNOWN

    key = (vitals.agent_id, vitals.session_id)
    at = now + DEAD_WORKER_SECONDS + 120
    monitor.apply(
        AgentEvent(type=EventType.LLM_CALL_STARTED, time=at, agent_id=key[0], session_id=key[1]), at
    )
    assert not vitals.has_ended
