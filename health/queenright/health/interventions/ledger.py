"""The intervention ledger: ladders, interventions and escalations, cached in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import Connection

from queenright.health.action_kind import ActionKind
from queenright.health.findings import WorkerKey
from queenright.health.interventions import intervention as intervention_rows
from queenright.health.interventions.escalation import Escalation, EscalationStatus, escalation_table
from queenright.health.interventions.intervention import Intervention, InterventionOutcome, intervention_table
from queenright.health.interventions.ladder import Ladder
from queenright.health.interventions.target import Target
from queenright.health.store.event_log import append_events
from queenright.health.store.store import Store
from queenright.runtime.deadline import TaskSet
from queenright.runtime.events import AgentEvent

_MAX_COUNT: Final = 100_000
"""The maximum number of sessions whose interventions are counted. The oldest are dropped first."""

_MAX_TERMINATIONS: Final = 1000
"""The maximum number of an agent's terminations to search, newest first."""

_UNCERTAIN: Final = frozenset({InterventionOutcome.STARTED, InterventionOutcome.UNCONFIRMED})


class InterventionLedger:
    """All interventions and ladders of one store. It belongs to one event loop."""

    def __init__(self, store: Store, *, publish: Callable[..., None]) -> None:
        self._store = store
        self._publish = publish
        self._tasks = TaskSet()
        self._counts: dict[WorkerKey, int] = {}
        self.ladders: dict[WorkerKey, Ladder] = {}
        self.pending: dict[str, Escalation] = {}
        """Undecided escalations."""
        self.uncertain: dict[WorkerKey, Intervention] = {}
        """Terminations of which it is not (yet) known whether the worker has stopped."""

    async def load(self) -> list[Intervention]:
        """Load the ledger. Return the actions that a restart interrupted, except terminations."""

        def read(conn: Connection) -> tuple[Any, ...]:
            return (
                intervention_rows.read_ladders(conn),
                escalation_table.newest(conn, _MAX_COUNT, status=EscalationStatus.PENDING),
                intervention_rows.count_interventions(conn),
                intervention_table.newest(conn, _MAX_COUNT, outcome=InterventionOutcome.STARTED),
                intervention_table.newest(conn, 1000, outcome=InterventionOutcome.UNCONFIRMED),
            )

        ladders, pending, counts, open_actions, unconfirmed_stops = await self._store.read(read)
        self.ladders = {ladder.target.key: ladder for ladder in ladders}
        self.pending = {escalation.escalation_id: escalation for escalation in pending}
        self._counts = dict(counts)
        # The newest comes last, so that it replaces older terminations.
        for intervention in sorted(
            (*open_actions, *unconfirmed_stops), key=lambda intervention_row: intervention_row.created_at
        ):
            if intervention.kind is ActionKind.TERMINATE:
                self.uncertain[intervention.target.key] = intervention
        return [
            intervention for intervention in open_actions if intervention.kind is not ActionKind.TERMINATE
        ]

    def count(self, key: WorkerKey) -> int:
        """Return how many interventions a session had, including refused and simulated ones."""
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
        Write a worker's ladder, an intervention, an escalation and events in one transaction, then publish.

        Raises:
            StoreError: Nothing was written or published.
        """

        def work(conn: Connection) -> None:
            intervention_rows.write_ladder(conn, key, ladder, now)
            if intervention is not None:
                intervention_table.write(conn, intervention)
            if escalation is not None:
                escalation_table.write(conn, escalation)
            append_events(conn, events)

        async def commit() -> None:
            await self._store.transact(work)
            self._cache(key, ladder, intervention, escalation)
            self._publish(*events)

        # Cancelling the caller must not keep committed events from being published.
        await self._tasks.run(commit())

    def worker_keys(self) -> set[WorkerKey]:
        """Return the workers with a ladder, interventions, or an uncertain termination."""
        return {*self.ladders, *self._counts, *self.uncertain}

    async def rename(self, old: WorkerKey, new: WorkerKey, now: float) -> None:
        """Move all records of a renamed worker to its new name. A ladder under the new name is kept."""
        if old not in self.worker_keys():
            return
        names = {"agent_id": new[0], "session_id": new[1]}
        ladder, uncertain = self.ladders.get(old), self.uncertain.get(old)
        renamed_ladder = self.ladders.get(new) or (ladder and ladder.model_copy(update=names))
        pending = [
            escalation.model_copy(update=names)
            for escalation in self.pending.values()
            if escalation.target.key == old
        ]

        def work(conn: Connection) -> None:
            intervention_rows.rename_interventions(conn, old, new)
            intervention_rows.write_ladder(conn, old, None, now)
            intervention_rows.write_ladder(conn, new, renamed_ladder, now)
            for escalation in pending:
                escalation_table.write(conn, escalation)

        await self._store.transact(work)
        self.ladders.pop(old, None)
        if renamed_ladder is not None:
            self.ladders[new] = renamed_ladder
        if uncertain is not None:
            self.uncertain[new] = self.uncertain.pop(old).model_copy(update=names)
        self.pending |= {escalation.escalation_id: escalation for escalation in pending}
        if count := self._counts.pop(old, 0):
            self._counts[new] = self._counts.get(new, 0) + count

    def _cache(
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
            self._cache_intervention(key, intervention)
        if escalation is not None:
            if escalation.status is EscalationStatus.PENDING:
                self.pending[escalation.escalation_id] = escalation
            else:
                self.pending.pop(escalation.escalation_id, None)

    def _cache_intervention(self, key: WorkerKey, intervention: Intervention) -> None:
        previous = self.uncertain.get(key)
        is_known = previous is not None and previous.intervention_id == intervention.intervention_id
        is_counted = is_known and previous is not None and previous.finished_at is not None
        if intervention.finished_at is not None and not is_counted and intervention.answered_at is None:
            self._counts[key] = self._counts.pop(key, 0) + 1
            if len(self._counts) > _MAX_COUNT:
                del self._counts[next(iter(self._counts))]
        if intervention.kind is ActionKind.TERMINATE:
            if intervention.outcome in _UNCERTAIN:
                self.uncertain[key] = intervention
            elif is_known:
                del self.uncertain[key]

    def is_stopping(self, key: WorkerKey, incarnation_id: str) -> bool:
        """
        Return whether a worker's incarnation is being terminated, or may still stop because it was asked to.
        """
        intervention = self.uncertain.get(key)
        return intervention is not None and intervention.incarnation_id == incarnation_id

    def forget_uncertain(self, key: WorkerKey) -> None:
        """Stop waiting for the confirmation of a worker's termination."""
        self.uncertain.pop(key, None)

    async def find_intervention(self, intervention_id: str) -> Intervention | None:
        """Return an intervention, or None if there is none with this id."""
        return await self._store.read(lambda conn: intervention_table.find(conn, intervention_id))

    async def find_stopped(self, target: Target) -> Intervention | None:
        """Return the newest termination that was confirmed for this incarnation of a worker, or None."""

        def read(conn: Connection) -> list[Intervention]:
            return intervention_table.newest(
                conn,
                _MAX_TERMINATIONS,
                agent_id=target.agent_id,
                kind=ActionKind.TERMINATE,
                outcome=InterventionOutcome.DONE,
            )

        return next(
            (intervention for intervention in await self._store.read(read) if intervention.target == target),
            None,
        )

    async def find_escalation(self, escalation_id: str) -> Escalation | None:
        """Return an escalation, or None if there is none with this id."""
        return self.pending.get(escalation_id) or await self._store.read(
            lambda conn: escalation_table.find(conn, escalation_id)
        )

    async def find_escalations_by_prefix(self, prefix: str, limit: int) -> list[Escalation]:
        """
        Return up to ``limit`` escalations, decided or not, whose id begins with ``prefix``, sorted by id.
        """
        return await self._store.read(lambda conn: escalation_table.find_by_prefix(conn, prefix, limit))
