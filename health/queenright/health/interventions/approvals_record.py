"""A request to stop a worker that a person has to approve: what it says, its life, how it is kept."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Connection, bindparam, select

from queenright.health.findings import FindingKind
from queenright.health.interventions.record import Outcome
from queenright.health.interventions.target import Target
from queenright.health.keyset import Place, newest_first
from queenright.health.monitor import WorkerHealth
from queenright.health.rows import find_body, put_row
from queenright.health.tables import APPROVALS
from queenright.health.ticket_rules import reasons


class ApprovalStatus(StrEnum):
    """Where a request stands."""

    REQUESTED = "requested"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    """Nobody answered in its time."""
    VOID = "void"
    """It needs no answer any more: the worker got further, waits, ended, or is another one by now."""


class Approval(BaseModel):
    """One request to stop one life of a worker. Times are seconds since the epoch."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    approval_id: str
    ticket_id: str
    agent_id: str
    session_id: str
    incarnation_id: str
    reason: str
    asked_by: str
    ordered_by: str = ""
    """Whose order, given in a chat, whoever asked has carried out; empty if nobody's."""
    created_at: float
    expires_at: float
    progress_before: float | None = None
    """The worker's last progress when it was asked; a later one makes this void."""
    status: ApprovalStatus = ApprovalStatus.REQUESTED
    decided_by: str = ""
    decided_at: float | None = None
    decision_reason: str = ""
    intervention_id: str = ""
    """The termination that an approval leads to, given with it: by this it is done once."""
    outcome: Outcome | None = None
    """What became of that; null before."""
    detail: str = ""

    @property
    def target(self) -> Target:
        """Whom it is about."""
        return Target(agent_id=self.agent_id, session_id=self.session_id, incarnation_id=self.incarnation_id)

    @property
    def asks(self) -> bool:
        """Whether it waits for somebody's word."""
        return self.status is ApprovalStatus.REQUESTED

    @property
    def is_open(self) -> bool:
        """Whether it waits for somebody's word, or for what was approved to be done."""
        return self.asks or (self.status is ApprovalStatus.APPROVED and self.outcome is None)


def over(approval: Approval, worker: WorkerHealth | None) -> str | None:
    """
    Return why a worker need not be stopped any more, as it is now; None while the condition holds.

    Args:
        approval: The request.
        worker: The worker as it is now; None if it is not known any more.
    """
    if worker is None:
        return "it is not known any more"
    v = worker.vitals
    if v.incarnation_id != approval.incarnation_id:
        return "it was restarted meanwhile"
    if v.ended:
        return f"it has ended ({v.status.value})"
    if v.waiting is not None:
        return f"it waits rightly ({v.waiting.value})"
    before, now = approval.progress_before, v.last_progress
    found = reasons(worker)
    # Getting further is no answer to what a worker spends by it.
    overspends = any(one.kind is FindingKind.SPENDING for one in found)
    if now is not None and (before is None or now > before) and not overspends:
        return "it has got further since"
    if not found:
        return "what it was about is over"
    return None


def by_whom(asked_by: str, ordered_by: str) -> str:
    """Return in words who does something, and who ordered it, if anybody."""
    return f"{asked_by}, as {ordered_by} ordered" if ordered_by else asked_by


def call_to_action(approval: Approval) -> str:
    """Return what an operator reads of a request on the ticket that it is about: one line."""
    until = datetime.fromtimestamp(approval.expires_at, UTC)
    ordered = f", as {approval.ordered_by} ordered," if approval.ordered_by else ""
    command = f"queenright approvals approve {approval.approval_id}"
    return (
        f"The {approval.asked_by} asks{ordered} to stop this worker: {' '.join(approval.reason.split())} "
        f"Approve until {until:%H:%M} UTC: {command} (or deny it)."
    )


# -- rows -----------------------------------------------------------------------------------------


def write_approval(conn: Connection, one: Approval) -> None:
    """Insert a request, or replace the one of its id."""
    values = {
        "agent_id": one.agent_id,
        "session_id": one.session_id,
        "status": one.status.value,
        "is_open": one.is_open,
        "created_at": one.created_at,
        "expires_at": one.expires_at,
        "body": one.model_dump_json(),
    }
    put_row(conn, APPROVALS, APPROVALS.c.approval_id, one.approval_id, values)


def find_approval(conn: Connection, approval_id: str) -> Approval | None:
    """Return one request, or None."""
    body = find_body(conn, APPROVALS, APPROVALS.c.approval_id, approval_id)
    return Approval.model_validate_json(body) if body is not None else None


_LATEST_ABOUT: Final = newest_first(
    select(APPROVALS.c.body).where(
        APPROVALS.c.agent_id == bindparam("agent"), APPROVALS.c.session_id == bindparam("session")
    ),
    APPROVALS.c.created_at,
    APPROVALS.c.approval_id,
    limit=1,
)


def latest_about(conn: Connection, agent_id: str, session_id: str) -> Approval | None:
    """Return the newest request about a worker's session, or None."""
    body = conn.execute(_LATEST_ABOUT, {"agent": agent_id, "session": session_id}).scalar()
    return Approval.model_validate_json(body) if body is not None else None


def read_approvals(
    conn: Connection, *, limit: int, only_open: bool = False, before: Place | None = None
) -> Sequence[Approval]:
    """Return the newest requests, newest first; with ``before`` the next page."""
    table = APPROVALS.c
    query = select(table.body)
    if only_open:
        query = query.where(table.is_open.is_(True))
    query = newest_first(query, table.created_at, table.approval_id, limit=limit, before=before)
    return [Approval.model_validate_json(body) for body in conn.execute(query).scalars()]
