"""What is done to workers, over HTTP: interventions, escalations, approvals, instructions."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from queenright.api.terms import (
    ActionKind,
    ApprovalStatus,
    Decision,
    EscalationStatus,
    InstructionKind,
    Outcome,
)
from queenright.api.wire import NOW, Wire, example_of, shown

NEXT: Final = "The cursor of the next page; null on the last one."
_WHO: Final[dict[str, Any]] = {
    "agent_id": "researcher",
    "session_id": "session-1",
    "incarnation_id": "018f6f7e-0000-7000-8000-000000000001",
}


class NudgeResult(Wire):
    """What became of a nudge."""

    model_config = shown(
        _WHO
        | {
            "intervention_id": "018f6f7e-0000-7000-8000-0000000000b1",
            "delivered": True,
            "outcome": "done",
            "attempt": 1,
            "message": "Write down what blocks you.",
            "detail": "",
        }
    )

    agent_id: str
    session_id: str
    incarnation_id: str
    intervention_id: str
    delivered: bool = Field(description="Whether it is in the worker's context, or waits to be fetched.")
    outcome: Outcome
    attempt: int
    message: str
    detail: str


class EscalationResult(Wire):
    """What became of the wish to ask the orchestrator."""

    model_config = shown(
        _WHO
        | {
            "intervention_id": "018f6f7e-0000-7000-8000-0000000000b2",
            "escalation_id": "018f6f7e-0000-7000-8000-0000000000e1",
            "outcome": "done",
        }
    )

    agent_id: str
    session_id: str
    incarnation_id: str
    intervention_id: str
    escalation_id: str = Field(description="Empty in a dry run.")
    outcome: Outcome


class TerminationResult(Wire):
    """What became of a termination."""

    model_config = shown(
        _WHO
        | {
            "intervention_id": "018f6f7e-0000-7000-8000-0000000000b3",
            "terminated": True,
            "outcome": "done",
            "checkpoint_id": "cp-17",
            "detail": "",
        }
    )

    agent_id: str
    session_id: str
    incarnation_id: str
    intervention_id: str
    terminated: bool = Field(description="Whether it is certain that the worker has stopped.")
    outcome: Outcome
    checkpoint_id: str | None = Field(description="Where its partial state is, if it was saved.")
    detail: str


class Intervention(Wire):
    """One thing that was done to a worker, or would have been. Times in seconds since the epoch."""

    model_config = shown(
        _WHO
        | {
            "intervention_id": "018f6f7e-0000-7000-8000-0000000000b1",
            "kind": "nudge",
            "outcome": "done",
            "by": "ladder",
            "reason": "stuck since 2 min",
            "attempt": 1,
            "trouble_since": NOW - 120,
            "created_at": NOW - 60,
            "finished_at": NOW - 60,
            "answered_at": None,
            "message": "Write down what blocks you.",
            "detail": "",
            "escalation_id": "",
            "checkpoint_id": None,
        }
    )

    intervention_id: str
    agent_id: str
    session_id: str
    incarnation_id: str
    kind: ActionKind
    outcome: Outcome
    by: str = Field(description="`ladder`, `queen`, `orchestrator`, or whoever asked for it.")
    reason: str
    attempt: int
    trouble_since: float | None
    created_at: float
    finished_at: float | None
    answered_at: float | None = Field(description="When a worker that fetches answered, or its time ended.")
    message: str
    detail: str
    escalation_id: str
    checkpoint_id: str | None


class InterventionsPage(Wire):
    """Interventions, newest first."""

    model_config = shown({"interventions": [example_of(Intervention)], "next": None})

    interventions: list[Intervention]
    next: str | None = Field(description=NEXT)


class Escalation(Wire):
    """One question to the orchestrator. Times in seconds since the epoch."""

    model_config = shown(
        _WHO
        | {
            "escalation_id": "018f6f7e-0000-7000-8000-0000000000e1",
            "reason": "3 nudges brought nothing",
            "options": ["more_time", "hand_off", "terminate"],
            "context": {"state": "stuck"},
            "created_at": NOW - 60,
            "deadline": NOW + 840,
            "status": "pending",
            "decision": None,
            "decided_by": "",
            "decided_at": None,
            "decision_reason": "",
            "more_time_seconds": None,
        }
    )

    escalation_id: str
    agent_id: str
    session_id: str
    incarnation_id: str
    reason: str
    options: list[Decision]
    context: dict[str, Any] = Field(description="The worker's summary, and what was done before.")
    created_at: float
    deadline: float
    status: EscalationStatus
    decision: Decision | None
    decided_by: str
    decided_at: float | None
    decision_reason: str
    more_time_seconds: float | None


class EscalationsPage(Wire):
    """Questions to the orchestrator, newest first."""

    model_config = shown({"escalations": [example_of(Escalation)], "next": None})

    escalations: list[Escalation]
    next: str | None = Field(description=NEXT)


class Approval(Wire):
    """One request to stop one life of a worker. Times in seconds since the epoch."""

    model_config = shown(
        _WHO
        | {
            "approval_id": "018f6f7e-0000-7000-8000-0000000000a1",
            "ticket_id": "018f6f7e-0000-7000-8000-0000000000c1",
            "reason": "it repeats one search and spends tokens",
            "asked_by": "queen",
            "ordered_by": "",
            "created_at": NOW - 60,
            "expires_at": NOW + 1740,
            "progress_before": NOW - 140,
            "status": "requested",
            "decided_by": "",
            "decided_at": None,
            "decision_reason": "",
            "intervention_id": "",
            "outcome": None,
            "detail": "",
        }
    )

    approval_id: str
    ticket_id: str
    agent_id: str
    session_id: str
    incarnation_id: str
    reason: str
    asked_by: str
    ordered_by: str = Field(description="Whose order whoever asked has carried out; empty if nobody's.")
    created_at: float
    expires_at: float
    progress_before: float | None = Field(description="The worker's last progress when it was asked.")
    status: ApprovalStatus
    decided_by: str
    decided_at: float | None
    decision_reason: str
    intervention_id: str = Field(description="The termination that an approval led to; empty before.")
    outcome: Outcome | None = Field(description="What became of that; null before.")
    detail: str


class ApprovalsPage(Wire):
    """Requests to stop a worker, newest first."""

    model_config = shown({"approvals": [example_of(Approval)], "next": None})

    approvals: list[Approval]
    next: str | None = Field(description=NEXT)


class PermissionRequest(Wire):
    """What a coding agent asks its person, and waits for. Times in seconds since the epoch."""

    model_config = shown(
        _WHO
        | {
            "agent_id": "claude-code/ada@laptop/honey",
            "request_id": "018f6f7e-0000-7000-8000-0000000000d1",
            "tool": "Bash",
            "question": "Bash: rm -rf build",
            "asked_at": NOW - 5,
            "expires_at": NOW + 25,
        }
    )

    request_id: str
    agent_id: str
    session_id: str
    incarnation_id: str
    tool: str
    question: str = Field(description="What it wants to do, in its words; secrets are masked.")
    asked_at: float
    expires_at: float = Field(description="Then the person at the terminal is asked.")


class PermissionsPage(Wire):
    """Permission requests that wait for an answer, newest first."""

    model_config = shown({"permissions": [example_of(PermissionRequest)], "next": None})

    permissions: list[PermissionRequest]
    next: str | None = Field(description=NEXT)


class PermissionResult(Wire):
    """What became of an answer to a permission request."""

    model_config = shown(
        _WHO
        | {
            "agent_id": "claude-code/ada@laptop/honey",
            "intervention_id": "018f6f7e-0000-7000-8000-0000000000b4",
            "delivered": True,
            "outcome": "done",
            "message": "allow: Bash: rm -rf build",
            "detail": "",
        }
    )

    agent_id: str
    session_id: str
    incarnation_id: str
    intervention_id: str
    delivered: bool = Field(description="Whether it was handed to the agent; false in a dry run.")
    outcome: Outcome
    message: str = Field(description="The decision, and what was asked.")
    detail: str


class EmergencyStop(Wire):
    """Whether acting is frozen, since when, by whom and why."""

    model_config = shown({"on": True, "by": "ada", "reason": "the provider is down", "changed_at": NOW})

    on: bool
    by: str = Field(description="Who set it last; empty: nobody yet.")
    reason: str
    changed_at: float | None = Field(description="Seconds since the epoch; null: never set.")


class Instruction(Wire):
    """One thing that a worker is told."""

    model_config = shown(
        {
            "instruction_id": "018f6f7e-0000-7000-8000-0000000000d1",
            "kind": "nudge",
            "message": "Write down what blocks you.",
            "expires_at": NOW + 300,
        }
    )

    instruction_id: str
    kind: InstructionKind
    message: str
    expires_at: float = Field(description="Seconds since the epoch.")


class Instructions(Wire):
    """What there is for a worker; empty if nothing came in time."""

    model_config = shown({"instructions": [example_of(Instruction)]})

    instructions: list[Instruction]
