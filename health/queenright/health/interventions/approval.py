"""Approvals: requests to terminate a worker, which a person must approve. Model, status and rows."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from sqlalchemy import Connection, bindparam, select

from queenright.health.findings import FindingKind
from queenright.health.interventions.intervention import InterventionOutcome
from queenright.health.interventions.target import WorkerRecord
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.store.rows import ModelTable, newest_first
from queenright.health.store.tables import APPROVALS
from queenright.health.tickets.ticket_rules import reasons


class ApprovalStatus(StrEnum):
    """The status of a request."""

    REQUESTED = "requested"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    """No answer arrived in time."""
    VOID = "void"
    """No longer needed, because the worker made progress, waits, has ended or was restarted."""


class Approval(WorkerRecord):
    """A request to stop one incarnation of a worker. Times are seconds since the epoch."""

    approval_id: str
    ticket_id: str
    reason: str
    asked_by: str
    ordered_by: str = ""
    """The person who ordered the termination in a chat; empty if there is none."""
    created_at: float
    expires_at: float
    progress_before: float | None = None
    """When the worker last made progress before the request. Later progress makes the request void."""
    status: ApprovalStatus = ApprovalStatus.REQUESTED
    decided_by: str = ""
    decided_at: float | None = None
    decision_reason: str = ""
    intervention_id: str = ""
    """The termination of an approved request. Its id is set with the approval, so that it runs only once."""
    outcome: InterventionOutcome | None = None
    """The outcome of the termination; None before it has run."""
    detail: str = ""

    @property
    def is_pending(self) -> bool:
        """Whether the request is waiting for an answer."""
        return self.status is ApprovalStatus.REQUESTED

    @property
    def is_open(self) -> bool:
        """Whether the request is waiting for an answer, or for the approved termination to complete."""
        return self.is_pending or (self.status is ApprovalStatus.APPROVED and self.outcome is None)


def void_reason(approval: Approval, worker: WorkerHealth | None) -> str | None:
    """
    Return why a worker no longer needs to be stopped, or None.

    Args:
        worker: The worker's current health, or None if it is unknown.
    """
    if worker is None:
        return "it is unknown"
    v = worker.vitals
    if v.incarnation_id != approval.incarnation_id:
        return "the worker was restarted in the meantime"
    if v.has_ended:
        return f"it has ended ({v.status.value})"
    if v.may_be_idle:
        return f"it waits ({v.waiting}) and may be idle"
    before, now = approval.progress_before, v.last_progress
    findings = reasons(worker)
    # Progress does not resolve a spending limit, because it costs money.
    overspends = any(finding.kind is FindingKind.SPENDING for finding in findings)
    if now is not None and (before is None or now > before) and not overspends:
        return "it has made progress since"
    if not findings:
        return "it no longer has findings"
    return None


def describe_requester(asked_by: str, ordered_by: str) -> str:
    """Return the requester's name, and the name of the person on whose behalf it acts, if any."""
    return f"{asked_by} on behalf of {ordered_by}" if ordered_by else asked_by


def call_to_action(approval: Approval) -> str:
    """Return the line that a pending request adds to its ticket, with the command that approves it."""
    until = datetime.fromtimestamp(approval.expires_at, UTC)
    requester = describe_requester(approval.asked_by, approval.ordered_by)
    command = f"queenright approvals approve {approval.approval_id}"
    return (
        f"The {requester} asks to terminate this worker: {' '.join(approval.reason.split())} "
        f"Approve until {until:%H:%M} UTC: {command} (or deny it)."
    )


# -- rows -----------------------------------------------------------------------------------------


approval_table: Final = ModelTable(APPROVALS, Approval)

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
    about = {"agent": agent_id, "session": session_id}
    return next(iter(approval_table.read(conn, _LATEST_ABOUT, about)), None)
