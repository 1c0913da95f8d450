"""A service that restarts during sessions, and receives records again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.instrumentation.names import WaitingReason
from queenright.runtime.events import AgentEvent
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.recall import RECALLED_TYPES, restore_runs
from tests.clients.fixtures import BEGAN, FOLDER, Record, load_fixture
from tests.server.telemetry.replay import decode_record, split_record

PATHS = sorted(FOLDER.glob("*/*.json"))


class RecordedService:
    """A service that ingests records, and the resulting state of each worker."""

    def __init__(self) -> None:
        self.monitor = HealthMonitor(HealthSettings())
        self.assembler = Assembler()
        self.events = list[AgentEvent]()

    def restart(self) -> None:
        self.assembler = Assembler()
        restore_runs(
            self.assembler, self.monitor, [event for event in self.events if event.type in RECALLED_TYPES]
        )

    def ingest_records(self, records: Sequence[Record]) -> None:
        for record in records:
            batch = decode_record(record, self.assembler)
            self.assembler.duplicates.finish_storing(batch.identities, is_stored=True)
            self.events += batch.events
            for event in batch.events:
                self.monitor.apply(event, BEGAN + record.at)

    def list_states(self) -> set[tuple[Any, ...]]:
        state = set()
        for worker in self.monitor.workers():
            vitals = worker.vitals
            cost = round(vitals.cost_usd or 0.0, 6)
            counts = vitals.steps_total, vitals.tool_calls_total, vitals.tokens, cost, vitals.error_count
            state.add((*worker.key, *counts, vitals.status))
        return state

    def list_waits(self) -> list[WaitingReason | None]:
        """Return the waiting reason of each worker that waits."""
        return [worker.vitals.waiting for worker in self.monitor.workers()]


@given(path=st.sampled_from(PATHS), cut=st.floats(0, 1), repeats=st.integers(1, 10))
def test_restart_at_any_record_does_not_change_a_run(path: Any, cut: float, repeats: int) -> None:
    """B84, B85: name, counts and outcome are the same, even if the client sends its last records again."""
    records = [
        single_record for record in load_fixture(path).records for single_record in split_record(record)
    ]
    position = round(cut * len(records))
    uninterrupted_service, restarted_service = RecordedService(), RecordedService()
    uninterrupted_service.ingest_records(records)

    restarted_service.ingest_records(records[:position])
    restarted_service.restart()
    restarted_service.ingest_records(records[max(0, position - repeats) :])

    assert restarted_service.list_states() == uninterrupted_service.list_states()
    assert restarted_service.list_waits() == uninterrupted_service.list_waits()
