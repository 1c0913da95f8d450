"""The recovery ledger: recoveries and their events in the database, with open recoveries in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection

from queenright.health.interventions.target import Target
from queenright.health.recovery import decisions
from queenright.health.recovery.recovery import Recovery, RecoveryState
from queenright.health.recovery.table import of_task, recovery_table, under_way
from queenright.health.store.event_log import append_events
from queenright.health.store.store import Store
from queenright.runtime.deadline import TaskSet
from queenright.runtime.events import AgentEvent, Clock, EventType

_MAX_LOADED: Final = 5_000
"""The maximum number of rows that are read at the start to count recoveries within the hour."""


@dataclass(slots=True)
class Changes:
    """The new or changed recoveries and the events of one transaction, in order."""

    rows: list[Recovery] = field(default_factory=list)
    events: list[AgentEvent] = field(default_factory=list)

    def write(self, conn: Connection) -> None:
        """Write the recoveries, then the events."""
        for recovery in self.rows:
            recovery_table.write(conn, recovery)
        append_events(conn, self.events)


class RecoveryLedger:
    """All recoveries of one store."""

    def __init__(
        self, store: Store, *, clock: Clock, ids: Callable[[], str], publish: Callable[..., None]
    ) -> None:
        self.open_recoveries: dict[str, Recovery] = {}
        """The open recovery of each task."""
        self._start_times: dict[str, list[float]] = {}
        """The start times of the recoveries within the last hour, by agent."""
        self._store = store
        self._clock = clock
        self._ids = ids
        self._publish = publish
        self._tasks = TaskSet()

    async def load(self) -> list[Recovery]:
        """Load open recoveries and return them, oldest first."""
        rows, newest = await self._store.read(
            lambda conn: (under_way(conn), recovery_table.newest(conn, _MAX_LOADED))
        )
        self._start_times = {}
        for recovery in newest:
            if recovery.started_at is not None:
                self._start_times.setdefault(recovery.agent_id, []).append(recovery.started_at)
        self.open_recoveries = {recovery.task_id: recovery for recovery in rows}
        return rows

    async def of_task(self, task_id: str) -> list[Recovery]:
        """Return all recoveries of a task, newest first."""
        return await self._store.read(lambda conn: of_task(conn, task_id))

    def start_times(self, agent_id: str) -> Sequence[float]:
        """Return when recoveries of an agent began within the last hour."""
        return self._start_times.get(agent_id, ())

    def waiting(self, agent_id: str, now: float, but: Collection[str]) -> list[float]:
        """
        Return when the waiting recoveries of an agent begin (``now`` or later), except those of the tasks in
        ``but``.
        """
        return [
            max(recovery.not_before, now)
            for recovery in self.open_recoveries.values()
            if recovery.agent_id == agent_id
            and recovery.state is RecoveryState.WAITING
            and recovery.task_id not in but
        ]

    def count_start(self, agent_id: str, now: float) -> None:
        """Count a recovery that is about to begin towards its agent's hourly limit."""
        for agent, times in list(self._start_times.items()):
            self._start_times[agent] = [at for at in times if at > now - decisions.HOUR]
            if not self._start_times[agent]:
                del self._start_times[agent]
        self._start_times.setdefault(agent_id, []).append(now)

    def uncount_start(self, agent_id: str, at: float) -> None:
        """Undo ``count_start``, because no start was attempted."""
        times = self._start_times.get(agent_id, [])
        if at in times:
            times.remove(at)

    def event(self, type_: EventType, about: Target, data: dict[str, Any]) -> AgentEvent:
        """Return an event about a worker."""
        return AgentEvent(
            id=self._ids(),
            type=type_,
            time=self._clock(),
            **about._asdict(),
            data=data,
        )

    def failure(self, recovery: Recovery, history: Sequence[Recovery]) -> AgentEvent:
        """Return the event of a failed recovery. It is about the new incarnation if there was one."""
        data = {
            "recovery_id": recovery.recovery_id,
            "task_id": recovery.task_id,
            "reason": recovery.outcome,
            "attempts": sum(earlier_recovery.started_at is not None for earlier_recovery in history),
            "exhausted": recovery.exhausted,
        }
        about = recovery.successor if recovery.new_incarnation_id else recovery.target
        return self.event(EventType.RECOVERY_FAILED, about, data)

    async def commit(self, changes: Changes) -> None:
        """
        Write changes and their events, then cache the changes and publish the events.

        Raises:
            StoreError: Writing failed. Nothing has changed.
        """
        if not changes.rows:
            return
        # Cancelling the caller must not keep committed events from being published.
        await self._tasks.run(self._commit(changes))

    async def close(self) -> None:
        """Wait for writes in progress."""
        await self._tasks.wait()

    async def _commit(self, changes: Changes) -> None:
        await self._store.transact(changes.write)
        for recovery in changes.rows:
            live = self.open_recoveries.get(recovery.task_id)
            if recovery.is_under_way:
                self.open_recoveries[recovery.task_id] = recovery
            elif live is not None and live.recovery_id == recovery.recovery_id:
                del self.open_recoveries[recovery.task_id]
        if changes.events:
            self._publish(*changes.events)
