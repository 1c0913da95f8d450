"""The ledger: ladders, interventions and escalations, in memory to go by and on the disk to outlive."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection

from queenright.health.event_log import append_events
from queenright.health.findings import WorkerKey
from queenright.health.interventions import record
from queenright.health.interventions.ladder import Ladder
from queenright.health.interventions.record import Escalation, EscalationStatus, Intervention, Outcome
from queenright.health.store import Store
from queenright.runtime.events import AgentEvent


class Ledger:
    """
    Everything that was done, and how far each ladder has been climbed. Belongs to one event loop.

    Args:
        store: Where it is kept.
        publish: Is given events once they are durable.
    """

    def __init__(self, store: Store, *, publish: Callable[..., None]) -> None:
        self._store = store
        self._publish = publish
        self._running: set[asyncio.Task[None]] = set()
        self.ladders: dict[WorkerKey, Ladder] = {}
        self.pending: dict[str, Escalation] = {}
        """Escalations that nobody has answered."""
        self.counts: Counter[WorkerKey] = Counter()
        """How many interventions each session had."""

    async def load(self) -> list[Intervention]:
        """Know everything again, and return the interventions that a restart interrupted."""

        def read(conn: Connection) -> tuple[Any, ...]:
            return (
                record.read_ladders(conn),
                record.read_escalations(conn, limit=100_000, pending=True),
                record.count_interventions(conn),
                record.read_interventions(conn, limit=100_000, outcome=Outcome.STARTED),
            )

        ladders, pending, counts, started = await self._store.read(read)
        self.ladders = {one.target.key: one for one in ladders}
        self.pending = {one.escalation_id: one for one in pending}
        self.counts = Counter(counts)
        return list(started)

    async def write(
        self,
        key: WorkerKey,
        *,
        ladder: Ladder | None,
        now: float,
        intervention: Intervention | None = None,
        escalation: Escalation | None = None,
        events: Sequence[AgentEvent] = (),
    ) -> None:
        """
        Keep how a worker's ladder stands, with what was done, in one transaction; then say it.

        Raises:
            StoreError: Nothing was kept, and nothing said.
        """

        def work(conn: Connection) -> None:
            record.write_ladder(conn, key, ladder, now)
            if intervention is not None:
                record.write_intervention(conn, intervention)
            if escalation is not None:
                record.write_escalation(conn, escalation)
            append_events(conn, events)

        async def commit() -> None:
            await self._store.transact(work)
            self._remember(key, ladder, intervention, escalation)
            self._publish(*events)

        task = asyncio.create_task(commit())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        # A caller that is cancelled half-way must not leave what was committed unsaid.
        await asyncio.shield(task)

    def _remember(
        self,
        key: WorkerKey,
        ladder: Ladder | None,
        intervention: Intervention | None,
        escalation: Escalation | None,
    ) -> None:
        if ladder is None:
            self.ladders.pop(key, None)
        else:
            self.ladders[key] = ladder
        if intervention is not None and intervention.finished_at is None:
            self.counts[key] += 1
        if escalation is not None:
            if escalation.status is EscalationStatus.PENDING:
                self.pending[escalation.escalation_id] = escalation
            else:
                self.pending.pop(escalation.escalation_id, None)

    async def interventions(self, *, limit: int, agent_id: str | None = None) -> list[Intervention]:
        """Return the newest interventions, newest first."""
        return await self._store.read(
            lambda conn: record.read_interventions(conn, limit=limit, agent_id=agent_id)
        )

    async def escalations(self, *, limit: int, pending: bool = False) -> list[Escalation]:
        """Return the newest escalations, newest first; with ``pending`` those that wait for an answer."""
        return list(
            await self._store.read(lambda conn: record.read_escalations(conn, limit=limit, pending=pending))
        )

    async def find_escalation(self, escalation_id: str) -> Escalation | None:
        """Return one escalation, or None."""
        return self.pending.get(escalation_id) or await self._store.read(
            lambda conn: record.find_escalation(conn, escalation_id)
        )
