"""A service that restarts during sessions and receives repeated records."""

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
from tests.server.telemetry.replay import decode_record, split

PATHS = sorted(FOLDER.glob("*/*.json"))


class RecordedService:
    """A service that ingests records, and the state of each worker afterwards."""

    def __init__(self) -> None:
        self.monitor = HealthMonitor(HealthSettings())
        self.assembler = Assembler()
        self.events = list[AgentEvent]()

    def restart(self) -> None:
        self.assembler = Assembler()
        restore_runs(
            self.assembler, self.monitor, [event for event in self.events if event.type in RECALLED_TYPES]
        )

    def tell(self, records: Sequence[Record]) -> None:
        for record in records:
            batch = decode_record(record, self.assembler)
            self.assembler.duplicates.finish_storing(batch.identities, is_stored=True)
            self.events += batch.events
            for event in batch.events:
                self.monitor.apply(event, BEGAN + record.at)

    def known(self) -> set[tuple[Any, ...]]:
        found = set()
        for worker in self.monitor.workers():
            v = worker.vitals
            cost = round(v.cost_usd or 0.0, 6)
            counts = v.steps_total, v.tool_calls_total, v.tokens, cost, v.error_count
            found.add((*worker.key, *counts, v.status))
        return found

    def waits(self) -> list[WaitingReason | None]:
        """Return the current waiting reason of each worker."""
        return [worker.vitals.waiting for worker in self.monitor.workers()]


@given(path=st.sampled_from(PATHS), cut=st.floats(0, 1), repeats=st.integers(1, 10))
def test_restart_at_any_record_changes_no_run(path: Any, cut: float, repeats: int) -> None:
    """B84, B85: name, counts and outcome are the same, even though the client repeats its last records."""
    records = [part for record in load_fixture(path).records for part in split(record)]
    at = round(cut * len(records))
    uninterrupted, restarted = RecordedService(), RecordedService()
    uninterrupted.tell(records)

    restarted.tell(records[:at])
    restarted.restart()
    restarted.tell(records[max(0, at - repeats) :])

    assert restarted.known() == uninterrupted.known()
    assert restarted.waits() == uninterrupted.waits()
