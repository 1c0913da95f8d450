"""Restore workers, counts and ages after a restart, from the snapshot and the event log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from queenright.health.findings import WorkerKey
from queenright.health.monitoring.logged_health import LoggedHealth
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.store.store import Store
from queenright.health.vitals.provider_traffic import WINDOW, ProviderTraffic
from queenright.runtime.events import AgentEvent, Clock
from queenright.server.ops.arrivals import REBUILD_SECONDS, ArrivalLog, ArrivalMark, Gap
from queenright.server.ops.rebuild import RebuildResult, read_model_calls, rebuild_workers

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedLog:
    """The result of the replay of the event log."""

    seconds_away: float
    """Seconds for which the service was not running."""
    last_events: Mapping[WorkerKey, float]
    """The time of each worker's last event."""
    logged_health: Mapping[WorkerKey, LoggedHealth]
    """The findings and states of workers according to the log and ``unlogged_events``."""
    unlogged_events: Sequence[AgentEvent]
    """Findings and states that still have to be logged and published."""


async def replay_log(
    store: Store, *, monitor: HealthMonitor, providers: ProviderTraffic, arrivals: ArrivalLog, clock: Clock
) -> ReplayedLog:
    """
    Restore the snapshot in a new monitor, and replay the later event log without publishing.

    A restart must not lose a count or repeat an alert. The downtime is excluded from every age, because no
    event could arrive during it.
    """
    started_at = clock()
    since = started_at - REBUILD_SECONDS
    notes = arrivals.read(since)
    if store.former_lease_at is not None:
        # Another process may have run last, and the file has only this process's times.
        arrivals.alive_until = store.former_lease_at
    monitor.listening_since = started_at

    def read(connection: Connection) -> RebuildResult:
        return rebuild_workers(
            connection, monitor, since=since, now=started_at, notes=notes, alive_until=arrivals.alive_until
        )

    rebuilt = await asyncio.to_thread(store.read_now, read)
    for call in await store.read(lambda connection: read_model_calls(connection, started_at - WINDOW)):
        providers.note(call, started_at)
    last_events = {health.key: health.vitals.last_event for health in monitor.workers()}
    now, seconds_away = clock(), 0.0
    if rebuilt.alive_until is not None:
        monitor.exclude_outage(rebuilt.alive_until, now)
        seconds_away = max(0.0, now - rebuilt.alive_until)
        if rebuilt.last_id:
            notes.append(ArrivalMark(rebuilt.alive_until, rebuilt.last_id))
        notes.append(Gap("away", rebuilt.alive_until, now))
    arrivals.start(notes, now)
    if rebuilt.snapshot_at is not None:
        age = started_at - rebuilt.snapshot_at
        _log.info("replayed %d events after the snapshot %.0f s ago", rebuilt.events, age)
    elif rebuilt.events:
        _log.info("replayed %d events of the last day", rebuilt.events)
    return ReplayedLog(
        seconds_away=seconds_away,
        last_events=last_events,
        logged_health=rebuilt.logged_health,
        unlogged_events=tuple(rebuilt.unlogged.values()),
    )
