"""Recovery after all workers of a fleet crash simultaneously."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection

from queenright.health.recovery.decisions import HOUR
from queenright.health.recovery.recovery import RecoveryState
from queenright.health.recovery.table import recovery_table
from queenright.health.store.event_log import read_events
from queenright.health.store.store import Store
from queenright.health.tickets.ticket_table import ticket_history
from queenright.runtime.events import AgentEvent, EventType
from tools.simulation.faults import FaultKind
from tools.simulation.fleet import Fleet, Odds
from tools.simulation.gaps import Gaps

WORKERS = 50
NO_FAULTS = Odds(
    faults_per_worker_day=0, sleeps_per_week=0, crashes_again=0, unrecoverable=0, fails_to_start=0
)


def list_events(conn: Connection, type_: EventType) -> list[AgentEvent]:
    return [event for _, event in read_events(conn, limit=1_000_000) if event.type is type_]


async def test_fifty_simultaneous_crashes_are_recovered_within_limits_or_reported(
    tmp_path: Path,
) -> None:
    """B72, B100, B101: an agent has at most five recoveries per hour; runs without checkpoint are dropped."""
    store = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    fleet = Fleet(store, workers=WORKERS, seed=50, gaps=Gaps([]), odds=NO_FAULTS)

    def crash_all() -> None:
        for worker in fleet.workers:
            if worker.is_finished:
                worker._new_session()
            worker._crash(fleet.begin_fault(worker, FaultKind.CRASH))
            fleet.schedule(worker, iter((None,)))

    fleet.call_at(fleet.now + 3600.0, crash_all)
    tally = await fleet.run(0.2)
    recovery_events = await store.read(lambda conn: list_events(conn, EventType.RECOVERY_INITIATED))
    failure_events = await store.read(lambda conn: list_events(conn, EventType.RECOVERY_FAILED))
    tickets = await store.read(lambda conn: ticket_history(conn, limit=1000))
    rows = await store.read(lambda conn: recovery_table.newest(conn, 1000))
    await store.close()

    limit = fleet.settings.recovery.max_attempts_per_hour
    times: dict[str, list[float]] = {}
    for event in recovery_events:
        times.setdefault(event.agent_id, []).append(event.time)
    assert times
    for agent_times in times.values():
        assert max(sum(at - HOUR < other <= at for other in agent_times) for at in agent_times) <= limit
    exhausted_sessions = {event.session_id for event in failure_events if event.data["exhausted"]}
    recovered_sessions = {event.session_id for event in recovery_events}
    dropped_sessions = {row.session_id for row in rows if row.state is RecoveryState.DROPPED}
    assert exhausted_sessions | recovered_sessions | dropped_sessions == {
        fault.session_id for fault in tally.faults
    }
    assert recovered_sessions - exhausted_sessions, (
        "workers with a checkpoint are recovered, however many agents crash"
    )
    assert dropped_sessions - recovered_sessions, (
        "tasks without a checkpoint that are not repeatable are not restarted"
    )
    assert not (dropped_sessions & exhausted_sessions)
    assert {ticket.session_id for ticket in tickets if ticket.kind == "recovery_failed"} >= exhausted_sessions
