"""Decisions that wait for an operator: approvals, escalations, and permission requests."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from queenright.cli.options import CURRENT_USER, AgentFilter, By, Json, Limit, Reason
from queenright.cli.output.printing import print_list, print_result
from queenright.cli.output.text import format_worker_cells, get_outcome_name, to_single_line, truncate
from queenright.cli.service import make_listing_group, require_text, warn_about_limits, with_service
from queenright.cli.short_ids import make_id_argument
from queenright.instrumentation.durations import format_duration

if TYPE_CHECKING:
    from queenright.api.interventions import Approval
    from queenright.client.synchronous import Queenright

All = Annotated[bool, typer.Option("--all", help="Include decided and expired ones.")]
ApprovalId = Annotated[str, make_id_argument("approvals")]
EscalationId = Annotated[str, make_id_argument("escalations")]
RequestId = Annotated[str, make_id_argument("permissions")]


class EscalationDecision(StrEnum):
    """A decision about a worker."""

    MORE_TIME = "more_time"
    HAND_OFF = "hand_off"
    TERMINATE = "terminate"


def _format_time_left(until: float) -> str:
    seconds = until - time.time()
    return f"{format_duration(seconds)} left" if seconds > 0 else "due"


@with_service
def list_approvals(service: Queenright, all_: All = False, as_json: Json = False, limit: Limit = 20) -> None:
    """List the queen's requests to terminate a worker, newest first."""
    rows = list(service.approvals.list(only_open=None if all_ else True, limit=limit))
    lines = (
        f"{approval.approval_id}  {_format_approval_state(approval):<14} "
        f"{format_worker_cells(approval.agent_id, approval.session_id)} {truncate(approval.reason)}"
        for approval in rows
    )
    print_list(rows, lines, "No approvals." if all_ else "No pending approvals.", as_json=as_json)


def _format_approval_state(approval: Approval) -> str:
    if approval.status != "requested":
        return str(approval.outcome or approval.status)
    return _format_time_left(approval.expires_at)


approvals = make_listing_group(list_approvals, example="approvals list --all")


@approvals.command("approve", epilog='Example: queenright approvals approve 01a2c4f8 --reason "it loops"')
@with_service
def approve(
    service: Queenright,
    approval: ApprovalId,
    reason: Reason = "",
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """Approve a request and terminate the worker. Exit code 1 if it still runs or the request has expired."""
    result = service.approvals.approve(approval, by=by, reason=reason)
    texts = {"done": "terminated.", "dry_run": "dry run, logged; nothing was done."}
    outcome = texts.get(result.outcome or "") or f"{get_outcome_name(result.outcome)}: {result.detail}"
    print_result(result, f"{result.agent_id}: {outcome}", as_json=as_json)
    raise typer.Exit(0 if result.outcome == "done" else 1)


@approvals.command("deny", epilog='Example: queenright approvals deny 01a2c4f8 --reason "let it finish"')
@with_service
def deny_approval(
    service: Queenright,
    approval: ApprovalId,
    reason: Reason = "",
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """Deny a request: the worker keeps running, and the queen does not ask again for a while."""
    result = service.approvals.deny(approval, by=by, reason=reason)
    print_result(result, f"{result.agent_id}: denied, it keeps running.", as_json=as_json)


@with_service
def list_escalations(
    service: Queenright, all_: All = False, as_json: Json = False, limit: Limit = 20
) -> None:
    """List the escalations that wait for a decision."""
    rows = list(service.escalations.list(only_open=None if all_ else True, limit=limit))
    is_frozen = not as_json and warn_about_limits(service.service.status())
    lines = []
    for e in rows:
        pending = "frozen" if is_frozen else _format_time_left(e.deadline)
        state = pending if e.status == "pending" else e.decision or e.status
        lines.append(
            f"{e.escalation_id}  {state:<14} {format_worker_cells(e.agent_id, e.session_id)} "
            f"{truncate(e.reason)}"
        )
    print_list(rows, lines, "No escalations." if all_ else "No pending escalations.", as_json=as_json)


escalations = make_listing_group(list_escalations, example="escalations list --all")


@escalations.command(
    "decide", epilog="Example: queenright escalations decide 01a2c4f8 more_time --minutes 30"
)
@with_service
def decide(
    service: Queenright,
    escalation: EscalationId,
    decision: Annotated[EscalationDecision, typer.Argument(help="Decision about the worker.")],
    reason: Reason = "",
    minutes: Annotated[
        float | None, typer.Option(min=0.1, max=10_080, help="Minutes of more_time. Default: 15.")
    ] = None,
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """Decide on an escalation."""
    if minutes is not None and decision is not EscalationDecision.MORE_TIME:
        raise typer.BadParameter(f"--minutes is for more_time, not for {decision.value}")
    seconds = minutes * 60 if minutes is not None else None
    result = service.escalations.decide(
        escalation, decision.value, reason=reason, more_time_seconds=seconds, by=by
    )
    print_result(result, f"{result.agent_id}: {decision.value.replace('_', ' ')}.", as_json=as_json)


@with_service
def list_permissions(
    service: Queenright, agent: AgentFilter = None, as_json: Json = False, limit: Limit = 20
) -> None:
    """List the pending permission requests of coding agents, newest first."""
    if agent is not None:
        require_text(agent)
    rows = list(service.permissions.list(agent_id=agent, limit=limit))
    lines = (
        f"{request.request_id}  {_format_time_left(request.expires_at)}  "
        f"{format_worker_cells(request.agent_id, request.session_id)}\n  {to_single_line(request.question)}"
        for request in rows
    )
    print_list(rows, lines, "No pending permission requests.", as_json=as_json)


permissions = make_listing_group(list_permissions, example="permissions list")


@permissions.command("allow", epilog="Example: queenright permissions allow 01a2c4f8")
@with_service
def allow(
    service: Queenright,
    request: RequestId,
    reason: Reason = "",
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """Allow a request. Exit code 1 if the answer does not reach the agent."""
    _answer_request(service, "allow", request, reason, by, as_json=as_json)


@permissions.command("deny", epilog='Example: queenright permissions deny 01a2c4f8 --reason "it is in use"')
@with_service
def deny_permission(
    service: Queenright,
    request: RequestId,
    reason: Reason = "",
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """Deny a request; the agent receives the reason. Exit code 1 if the answer does not reach the agent."""
    _answer_request(service, "deny", request, reason, by, as_json=as_json)


def _answer_request(
    service: Queenright, decision: str, request: str, reason: str, by: str, *, as_json: bool
) -> None:
    permission = service.permissions.answer(request, decision, by=by, reason=reason)
    text = f"Answered {permission.agent_id}: {permission.message}"
    if permission.outcome == "dry_run":
        text = "Dry run: logged, nothing was answered."
    print_result(permission, text, as_json=as_json)
    raise typer.Exit(0 if permission.delivered else 1)
