"""Interventions, escalations, approvals, permission requests and instructions."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from queenright.api.base_model import NEXT, ApiModel
from queenright.api.terms import (
    ActionKind,
    ApprovalStatus,
    Decision,
    EscalationStatus,
    InstructionKind,
    Outcome,
)


class NudgeResult(ApiModel):
    """The result of a nudge."""

    agent_id: str
    session_id: str
    incarnation_id: str
    intervention_id: str
    delivered: bool = Field(description="Whether it is in the worker's context, or queued for it.")
    outcome: Outcome
    attempt: int
    message: str
    detail: str


class EscalationResult(ApiModel):
    """The result of an escalation to the orchestrator."""

    agent_id: str
    session_id: str
    incarnation_id: str
    intervention_id: str
    escalation_id: str = Field(description="Empty in a dry run.")
    outcome: Outcome


class TerminationResult(ApiModel):
    """The result of a termination."""

    agent_id: str
    session_id: str
    incarnation_id: str
    intervention_id: str
    terminated: bool = Field(description="Whether the worker is known to have stopped.")
    outcome: Outcome
    checkpoint_id: str | None = Field(description="The checkpoint of its state, if it was saved.")
    detail: str


class Intervention(ApiModel):
    """An intervention, or one that a dry run logged. Times in seconds since the epoch."""

    intervention_id: str
    agent_id: str
    session_id: str
    incarnation_id: str
    kind: ActionKind
    outcome: Outcome
    by: str = Field(description="`ladder`, `queen`, `orchestrator`, or the operator's name.")
    reason: str
    attempt: int
    trouble_since: float | None
    created_at: float
    finished_at: float | None
    answered_at: float | None = Field(description="When the worker that fetched it answered, or it expired.")
    message: str
    detail: str
    escalation_id: str
    checkpoint_id: str | None


class InterventionsPage(ApiModel):
    """Interventions, newest first."""

    interventions: list[Intervention]
    next: str | None = Field(description=NEXT)


class Escalation(ApiModel):
    """An escalation to the orchestrator. Times in seconds since the epoch."""

    escalation_id: str
    agent_id: str
    session_id: str
    incarnation_id: str
    reason: str
    options: list[Decision]
    context: dict[str, Any] = Field(description="A summary of the worker, and earlier interventions.")
    created_at: float
    deadline: float
    status: EscalationStatus
    decision: Decision | None
    decided_by: str
    decided_at: float | None
    decision_reason: str
    more_time_seconds: float | None


class EscalationsPage(ApiModel):
    """Escalations to the orchestrator, newest first."""

    escalations: list[Escalation]
    next: str | None = Field(description=NEXT)


class Approval(ApiModel):
    """A request to terminate one incarnation of a worker. Times in seconds since the epoch."""

    approval_id: str
    ticket_id: str
    agent_id: str
    session_id: str
    incarnation_id: str
    reason: str
    asked_by: str
    ordered_by: str = Field(description="The operator whose order led to the request; empty: none.")
    created_at: float
    expires_at: float
    progress_before: float | None = Field(description="The worker's last progress before the request.")
    status: ApprovalStatus
    decided_by: str
    decided_at: float | None
    decision_reason: str
    intervention_id: str = Field(description="The termination after an approval; empty before.")
    outcome: Outcome | None = Field(description="The outcome of the termination; null before.")
    detail: str


class ApprovalsPage(ApiModel):
    """Requests to terminate a worker, newest first."""

    approvals: list[Approval]
    next: str | None = Field(description=NEXT)


class PermissionRequest(ApiModel):
    """A permission that a coding agent asks for and waits for. Times in seconds since the epoch."""

    request_id: str
    agent_id: str
    session_id: str
    incarnation_id: str
    tool: str
    question: str = Field(description="What it wants to do, in its own words; secrets are masked.")
    asked_at: float
    expires_at: float = Field(description="After this, the user at the terminal is asked.")


class PermissionsPage(ApiModel):
    """Pending permission requests, newest first."""

    permissions: list[PermissionRequest]
    next: str | None = Field(description=NEXT)


class PermissionResult(ApiModel):
    """The result of an answer to a permission request."""

    agent_id: str
    session_id: str
    incarnation_id: str
    intervention_id: str
    delivered: bool = Field(description="Whether the agent received it; false in a dry run.")
    outcome: Outcome
    message: str = Field(description="The decision and the request.")
    detail: str


class EmergencyStop(ApiModel):
    """The state of the emergency stop."""

    on: bool
    by: str = Field(description="Who set it last; empty: never set.")
    reason: str
    changed_at: float | None = Field(description="Seconds since the epoch; null: never set.")


class Instruction(ApiModel):
    """An instruction to a worker."""

    instruction_id: str
    kind: InstructionKind
    message: str
    expires_at: float = Field(description="Seconds since the epoch.")


class Instructions(ApiModel):
    """Instructions to a worker; empty if none came within the wait."""

    instructions: list[Instruction]
