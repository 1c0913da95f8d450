"""The ledger: ladders, interventions and escalations, in memory to go by and on the disk to outlive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import Connection

from queenright.health.event_log import append_events
from queenright.health.findings import WorkerKey
from queenright.health.interventions import record
from queenright.health.interventions.ladder import Ladder
from queenright.health.interventions.record import Escalation, EscalationStatus, Intervention, Outcome
from queenright.health.interventions.target import ActionKind, Target
from queenright.health.store import Store
from queenright.runtime.events import AgentEvent

_COUNTED: Final = 100_000
"""Of so many sessions it is known how often something was done; the newest."""

_MOST_TERMINATIONS: Final = 1000
"""Among so many terminations of an agent, the newest, that of one of its lives is looked for."""

_UNCERTAIN: Final = frozenset({Outcome.STARTED, Outcome.UNCONFIRMED})


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
        self._counts: dict[WorkerKey, int] = {}
        self.ladders: dict[WorkerKey, Ladder] = {}
        self.pending: dict[str, Escalation] = {}
        """Escalations that nobody has answered."""
        self.uncertain: dict[WorkerKey, Intervention] = {}
        """Terminations of which nobody knows (yet) whether the worker has stopped."""

    async def load(self) -> list[Intervention]:
        """Know everything again, and return what a restart interrupted, terminations apart."""

        def read(conn: Connection) -> tuple[Any, ...]:
            return (
                record.read_ladders(conn),
                record.read_escalations(conn, limit=_COUNTED, pending=True),
                record.count_interventions(conn),
                record.read_interventions(conn, limit=_COUNTED, outcome=Outcome.STARTED),
                record.read_interventions(conn, limit=1000, outcome=Outcome.UNCONFIRMED),
            )

        ladders, pending, counts, started, unconfirmed = await self._store.read(read)
        self.ladders = {one.target.key: one for one in ladders}
        self.pending = {one.escalation_id: one for one in pending}
        self._counts = dict(counts)
        # Newest first: an older one does not take its place.
        for one in sorted((*started, *unconfirmed), key=lambda each: each.created_at):
            if one.kind is ActionKind.TERMINATE:
                self.uncertain[one.target.key] = one
        return [one for one in started if one.kind is not ActionKind.TERMINATE]

    def count(self, key: WorkerKey) -> int:
        """Return how many interventions a session had, those refused or only on paper among them."""
        return self._counts.get(key, 0)

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
        if intervention is not None:
            self._note(key, intervention)
        if escalation is not None:
            if escalation.status is EscalationStatus.PENDING:
                self.pending[escalation.escalation_id] = escalation
            else:
                self.pending.pop(escalation.escalation_id, None)

    def _note(self, key: WorkerKey, one: Intervention) -> None:
        known = self.uncertain.get(key)
        again = known is not None and known.intervention_id == one.intervention_id
        counted = again and known is not None and known.finished_at is not None
        if one.finished_at is not None and not counted and one.answered_at is None:
            self._counts[key] = self._counts.pop(key, 0) + 1
            if len(self._counts) > _COUNTED:
                del self._counts[next(iter(self._counts))]
        if one.kind is ActionKind.TERMINATE:
            if one.outcome in _UNCERTAIN:
                self.uncertain[key] = one
            elif again:
                del self.uncertain[key]

    def is_stopping(self, key: WorkerKey, incarnation_id: str) -> bool:
        """Return whether a life of a worker is being terminated, or was asked to stop and may yet."""
        one = self.uncertain.get(key)
        return one is not None and one.incarnation_id == incarnation_id

    def forget_uncertain(self, key: WorkerKey) -> None:
        """Nobody waits any more for word of a termination."""
        self.uncertain.pop(key, None)

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

    async def find_intervention(self, intervention_id: str) -> Intervention | None:
        """Return one record, or None."""
        return await self._store.read(lambda conn: record.find_intervention(conn, intervention_id))

    async def find_stopped(self, target: Target) -> Intervention | None:
        """Return the newest termination by which this life of a worker has stopped, as it seemed; or None."""

        def read(conn: Connection) -> list[Intervention]:
            return record.read_interventions(
                conn,
                limit=_MOST_TERMINATIONS,
                agent_id=target.agent_id,
                kind=ActionKind.TERMINATE,
                outcome=Outcome.DONE,
            )

        return next((one for one in await self._store.read(read) if one.target == target), None)

    async def find_escalation(self, escalation_id: str) -> Escalation | None:
        """Return one escalation, or None."""
        return self.pending.get(escalation_id) or await self._store.read(
            lambda conn: record.find_escalation(conn, escalation_id)
        )
