"""Interventions: the model, and the rows of interventions and ladders."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from sqlalchemy import Connection, bindparam, func, select

from queenright.health.action_kind import ActionKind
from queenright.health.findings import WorkerKey
from queenright.health.interventions.ladder import Ladder
from queenright.health.interventions.target import WorkerRecord
from queenright.health.store.rows import ModelTable
from queenright.health.store.tables import INTERVENTIONS, LADDERS


class InterventionOutcome(StrEnum):
    """The outcome of an intervention."""

    STARTED = "started"
    """The action has started, and its result is unknown."""
    DONE = "done"
    QUEUED = "queued"
    """The instruction waits for the worker to fetch it."""
    UNREACHABLE = "unreachable"
    UNCONFIRMED = "unconfirmed"
    """The worker was asked to stop, but the stop is not confirmed."""
    REFUSED = "refused"
    FAILED = "failed"
    EXPIRED = "expired"
    """The worker did not fetch or answer the instruction in time."""
    DRY_RUN = "dry_run"
    """The action was only simulated."""


class Intervention(WorkerRecord):
    """An action on a worker, real or simulated. Times are seconds since the epoch."""

    intervention_id: str
    kind: ActionKind
    outcome: InterventionOutcome
    by: str
    """``ladder``, ``queen``, ``orchestrator``, or the person who requested it."""
    reason: str
    attempt: int = 1
    trouble_since: float | None = None
    created_at: float
    finished_at: float | None = None
    answered_at: float | None = None
    """When the worker that fetched the instruction reported the result, or the instruction expired."""
    message: str = ""
    detail: str = ""
    escalation_id: str = ""
    checkpoint_id: str | None = None

    @property
    def is_delivered(self) -> bool:
        """Whether a nudge is in the worker's context, or queued until the worker fetches it."""
        return self.outcome in (InterventionOutcome.DONE, InterventionOutcome.QUEUED)

    @property
    def has_stopped(self) -> bool:
        """Whether a termination certainly stopped the worker."""
        return self.outcome is InterventionOutcome.DONE


intervention_table: Final = ModelTable(INTERVENTIONS, Intervention)


def write_ladder(conn: Connection, key: WorkerKey, ladder: Ladder | None, now: float) -> None:
    """Replace the ladder of a worker; None removes it."""
    conditions = (LADDERS.c.agent_id == key[0], LADDERS.c.session_id == key[1])
    conn.execute(LADDERS.delete().where(*conditions))
    if ladder is not None:
        conn.execute(
            LADDERS.insert().values(
                agent_id=key[0],
                session_id=key[1],
                level=ladder.level.value,
                updated_at=now,
                body=ladder.model_dump_json(),
            )
        )


_LADDER_QUERY: Final = select(LADDERS.c.body).where(
    LADDERS.c.agent_id == bindparam("agent"), LADDERS.c.session_id == bindparam("session")
)


def find_ladder(conn: Connection, key: WorkerKey) -> Ladder | None:
    """Return the ladder of a worker, or None if it has none."""
    body = conn.execute(_LADDER_QUERY, {"agent": key[0], "session": key[1]}).scalar()
    return None if body is None else Ladder.model_validate_json(body)


def read_ladders(conn: Connection) -> list[Ladder]:
    """Return every ladder."""
    return [Ladder.model_validate_json(body) for body in conn.execute(select(LADDERS.c.body)).scalars()]


def rename_interventions(conn: Connection, old: WorkerKey, new: WorkerKey) -> None:
    """Move the interventions of a renamed worker to its new name."""
    table = INTERVENTIONS.c
    query = select(table.body).where(table.agent_id == old[0], table.session_id == old[1])
    for intervention in intervention_table.read(conn, query):
        names = {"agent_id": new[0], "session_id": new[1]}
        intervention_table.write(conn, intervention.model_copy(update=names))


def count_interventions(conn: Connection) -> dict[WorkerKey, int]:
    """Return the number of interventions of each session."""
    columns = (INTERVENTIONS.c.agent_id, INTERVENTIONS.c.session_id)
    rows = conn.execute(select(*columns, func.count()).group_by(*columns))
    return {(agent, session): count for agent, session, count in rows}
