"""Clients and programs that were killed, or hang: the states of their runs, on the test's clock."""

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
DAY = SETTINGS.tickets.dead_worker_seconds
HOUR = SETTINGS.tickets.abandoned_run_seconds
SILENT = 2 * SETTINGS.stall.unknown_seconds
WATCHED = [pair.name for pair in PAIRS.values() if "watched" in pair.variants]
"""Programs that can report open work; those for Node cannot."""
WAITS = FOLDER / "claude-code" / "permission.json"


def replay_into_monitor(
    records: Sequence[Record],
) -> tuple[HealthMonitor, VitalSigns, float, dict[str, float | None]]:
    """Return a monitor with all events, its only run, the last time, and the processes with heartbeats."""
    monitor, assembler, signs = HealthMonitor(SETTINGS), Assembler(), dict[str, float | None]()
    now = BEGAN
    for record in records:
        now = BEGAN + record.at
        batch = decode_record(record, assembler)
        assembler.duplicates.finish_storing(batch.identities, is_stored=True)
        for event in batch.events:
            monitor.apply(event, now)
        for incarnation, interval in batch.report_intervals.items():
            monitor.record_process_alive(incarnation, now, interval)
            signs[incarnation] = interval or signs.get(incarnation)
    [worker] = monitor.workers()
    return monitor, worker.vitals, now, signs


def until_end(fixture: Fixture) -> list[Record]:
    return [record for record in fixture.records if record.at <= fixture.ended_at]


def has_ticket(monitor: HealthMonitor) -> bool:
    return any(
        finding.kind is FindingKind.STALL and finding.ticket
        for w in monitor.workers()
        for finding in w.findings
    )


@pytest.mark.parametrize("client", CLIENTS)
def test_killed_coding_agent_ends_as_unknown_and_its_finding_is_cleared(client: str) -> None:
    """B88: it looks like one with a hanging tool, which is found in time."""
    monitor, vitals, now, _ = replay_into_monitor(until_end(load_fixture(FOLDER / client / "killed.json")))

    monitor.sweep(now + SILENT)
    assert has_ticket(monitor)
    assert not vitals.has_ended

    monitor.sweep(now + SILENT + DAY)
    assert (vitals.status, has_ticket(monitor)) == (WorkerStatus.UNKNOWN, False)


@pytest.mark.parametrize("pair", PAIRS)
def test_killed_program_ends_as_unknown_once_its_process_is_gone(pair: str) -> None:
    """B88: without a ticket if an open call is known; otherwise an hour after its ticket."""
    for name in ("killed", "killed-watched") if pair in WATCHED else ("killed",):
        if records := until_end(load_framework(fixture_path(pair, name))):  # some had sent nothing by then
            monitor, vitals, now, signs = replay_into_monitor(records)
            is_gone = vitals.phase in (Phase.LLM, Phase.TOOL) and any(signs.values())
            if not is_gone:
                monitor.sweep(now + SILENT)
                assert has_ticket(monitor)

            monitor.sweep(now + (120 if is_gone else SILENT + HOUR))

            assert (vitals.status, has_ticket(monitor)) == (WorkerStatus.UNKNOWN, False)


@pytest.mark.parametrize("pair", WATCHED)
def test_hanging_program_has_a_ticket_while_its_process_reports_it(pair: str) -> None:
    """B88: it is never considered gone."""
    monitor, vitals, now, signs = replay_into_monitor(
        until_end(load_framework(fixture_path(pair, "hang_first-watched")))
    )
    for minute in range(24 * 60):
        for incarnation, interval in signs.items():
            monitor.record_process_alive(incarnation, now + 60 * minute, interval)
        if minute % 15 == 0:
            monitor.sweep(now + 60 * minute)

    assert has_ticket(monitor)
    assert not vitals.has_ended


def test_session_waiting_for_its_user_ends_after_a_day_and_resumes_on_return() -> None:
    """B88, B95: such as on a closed laptop; the wait itself is never a finding."""
    records = until_end(load_fixture(WAITS))
    monitor, vitals, now, _ = replay_into_monitor(records)
    assert vitals.waiting is not None

    monitor.sweep(now + DAY - 60)
    assert not vitals.has_ended
    assert not any(worker.findings for worker in monitor.workers())
    monitor.sweep(now + DAY + 60)
    assert vitals.status is WorkerStatus.UNKNOWN

    key = (vitals.agent_id, vitals.session_id)
    at = now + DAY + 120
    monitor.apply(
        AgentEvent(type=EventType.LLM_CALL_STARTED, time=at, agent_id=key[0], session_id=key[1]), at
    )
    assert not vitals.has_ended
