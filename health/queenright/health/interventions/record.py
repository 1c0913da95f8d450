"""Records of what was done: interventions and escalations, as they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, bindparam, func, select

from queenright.health.findings import WorkerKey
from queenright.health.interventions.ladder import Ladder
from queenright.health.interventions.target import ActionKind, Target
from queenright.health.keyset import Place, newest_first
from queenright.health.rows import find_body, put_row
from queenright.health.tables import ESCALATIONS, INTERVENTIONS, LADDERS

Decision = Literal["more_time", "hand_off", "terminate"]
MORE_TIME_SECONDS: Final = 900.0
"""What "more time" is if the decision names none; each decision may name another."""
OPTIONS: Final[tuple[Decision, ...]] = ("more_time", "hand_off", "terminate")


class Outcome(StrEnum):
    """What became of an intervention."""

    STARTED = "started"
    """It was begun; nothing is known of its end yet."""
    DONE = "done"
    QUEUED = "queued"
    """The worker fetches it."""
    UNREACHABLE = "unreachable"
    UNCONFIRMED = "unconfirmed"
    """It was asked to stop, and nothing says that it has."""
    REFUSED = "refused"
    FAILED = "failed"
    EXPIRED = "expired"
    """The worker did not fetch it, or did not answer, in its time."""
    DRY_RUN = "dry_run"
    """It would have been done."""


class Intervention(BaseModel):
    """One thing that was done to a worker, or would have been. Times are seconds since the epoch."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    intervention_id: str
    agent_id: str
    session_id: str
    incarnation_id: str
    kind: ActionKind
    outcome: Outcome
    by: str
    """``ladder``, ``queen``, ``orchestrator``, or whoever asked for it."""
    reason: str
    attempt: int = 1
    trouble_since: float | None = None
    created_at: float
    finished_at: float | None = None
    answered_at: float | None = None
    """When a worker that fetches said what became of it, or its time was over."""
    message: str = ""
    detail: str = ""
    escalation_id: str = ""
    checkpoint_id: str | None = None

    @property
    def target(self) -> Target:
        """Whom it was for."""
        return Target(agent_id=self.agent_id, session_id=self.session_id, incarnation_id=self.incarnation_id)


class EscalationStatus(StrEnum):
    """Where an escalation stands."""

    PENDING = "pending"
    DECIDED = "decided"
    TIMED_OUT = "timed_out"
    WITHDRAWN = "withdrawn"
    """The worker got further, waits, or ended, before anybody answered."""


class Escalation(BaseModel):
    """One question to the orchestrator. Times are seconds since the epoch."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    escalation_id: str
    agent_id: str
    session_id: str
    incarnation_id: str
    reason: str
    options: tuple[Decision, ...] = OPTIONS
    context: dict[str, Any]
    """The worker's summary, and what was done before."""
    created_at: float
    deadline: float
    status: EscalationStatus = EscalationStatus.PENDING
    decision: Decision | None = None
    decided_by: str = ""
    decided_at: float | None = None
    decision_reason: str = ""
    more_time_seconds: float | None = None

    @property
    def target(self) -> Target:
        """Whom it is about."""
        return Target(agent_id=self.agent_id, session_id=self.session_id, incarnation_id=self.incarnation_id)


class Answer(BaseModel):
    """What an orchestrator answers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    decision: Decision
    reason: str = ""
    more_time_seconds: float | None = None


def write_intervention(conn: Connection, one: Intervention) -> None:
    """Insert a record, or replace the one of its id."""
    values = {
        "agent_id": one.agent_id,
        "session_id": one.session_id,
        "incarnation_id": one.incarnation_id,
        "kind": one.kind.value,
        "outcome": one.outcome.value,
        "created_at": one.created_at,
        "body": one.model_dump_json(),
    }
    put_row(conn, INTERVENTIONS, INTERVENTIONS.c.intervention_id, one.intervention_id, values)


def write_escalation(conn: Connection, one: Escalation) -> None:
    """Insert a record, or replace the one of its id."""
    values = {
        "agent_id": one.agent_id,
        "session_id": one.session_id,
        "status": one.status.value,
        "created_at": one.created_at,
        "deadline": one.deadline,
        "body": one.model_dump_json(),
    }
    put_row(conn, ESCALATIONS, ESCALATIONS.c.escalation_id, one.escalation_id, values)


def write_ladder(conn: Connection, key: WorkerKey, ladder: Ladder | None, now: float) -> None:
    """Keep how far the ladder of a worker has been climbed; None: it is on the ground."""
    where = (LADDERS.c.agent_id == key[0], LADDERS.c.session_id == key[1])
    conn.execute(LADDERS.delete().where(*where))
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


_LADDER: Final = select(LADDERS.c.body).where(
    LADDERS.c.agent_id == bindparam("agent"), LADDERS.c.session_id == bindparam("session")
)


def find_ladder(conn: Connection, key: WorkerKey) -> Ladder | None:
    """Return how far the ladder of a worker has been climbed; None: it is on the ground."""
    body = conn.execute(_LADDER, {"agent": key[0], "session": key[1]}).scalar()
    return None if body is None else Ladder.model_validate_json(body)


def read_ladders(conn: Connection) -> list[Ladder]:
    """Return every ladder that is not on the ground."""
    return [Ladder.model_validate_json(body) for body in conn.execute(select(LADDERS.c.body)).scalars()]


def read_interventions(
    conn: Connection,
    *,
    limit: int,
    agent_id: str | None = None,
    kind: ActionKind | None = None,
    outcome: Outcome | None = None,
    before: Place | None = None,
) -> list[Intervention]:
    """Return the newest records, newest first; with ``before`` the next page."""
    query = select(INTERVENTIONS.c.body)
    if agent_id is not None:
        query = query.where(INTERVENTIONS.c.agent_id == agent_id)
    if kind is not None:
        query = query.where(INTERVENTIONS.c.kind == kind.value)
    if outcome is not None:
        query = query.where(INTERVENTIONS.c.outcome == outcome.value)
    table = INTERVENTIONS.c
    query = newest_first(query, table.created_at, table.intervention_id, limit=limit, before=before)
    return [Intervention.model_validate_json(body) for body in conn.execute(query).scalars()]


def find_intervention(conn: Connection, intervention_id: str) -> Intervention | None:
    """Return one record, or None."""
    body = find_body(conn, INTERVENTIONS, INTERVENTIONS.c.intervention_id, intervention_id)
    return Intervention.model_validate_json(body) if body is not None else None


def count_interventions(conn: Connection) -> dict[WorkerKey, int]:
    """Return how many records there are of each worker's session."""
    columns = (INTERVENTIONS.c.agent_id, INTERVENTIONS.c.session_id)
    rows = conn.execute(select(*columns, func.count()).group_by(*columns))
    return {(agent, session): count for agent, session, count in rows}


def read_escalations(
    conn: Connection, *, limit: int, pending: bool = False, before: Place | None = None
) -> Sequence[Escalation]:
    """Return the newest escalations, newest first; with ``before`` the next page."""
    query = select(ESCALATIONS.c.body)
    if pending:
        query = query.where(ESCALATIONS.c.status == EscalationStatus.PENDING.value)
    table = ESCALATIONS.c
    query = newest_first(query, table.created_at, table.escalation_id, limit=limit, before=before)
    return [Escalation.model_validate_json(body) for body in conn.execute(query).scalars()]


def find_escalation(conn: Connection, escalation_id: str) -> Escalation | None:
    """Return one escalation, or None."""
    body = find_body(conn, ESCALATIONS, ESCALATIONS.c.escalation_id, escalation_id)
    return Escalation.model_validate_json(body) if body is not None else None
