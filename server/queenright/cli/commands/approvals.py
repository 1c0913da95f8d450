"""Approvals: the queen's requests to terminate a worker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from queenright.cli.options import CURRENT_USER, By, Json, Limit, Reason
from queenright.cli.output.printing import print_list, print_result
from queenright.cli.output.text import outcome_name, truncate, worker_cells
from queenright.cli.service import listing_group, with_service
from queenright.cli.short_ids import require_id
from queenright.instrumentation.durations import format_duration

if TYPE_CHECKING:
    from queenright.api.interventions import Approval
    from queenright.client.synchronous import Queenright

All = Annotated[bool, typer.Option("--all", help="Include decided and expired ones.")]
ApprovalId = Annotated[
    str, typer.Argument(callback=require_id, help="Id, or its beginning, as `queenright approvals` shows it.")
]

_OUTCOMES = {"done": "terminated.", "dry_run": "dry run, logged; nothing was done."}


@with_service
def list_approvals(service: Queenright, all_: All = False, as_json: Json = False, limit: Limit = 20) -> None:
    """List the queen's requests to terminate a worker, newest first."""
    rows = list(service.approvals.list(only_open=None if all_ else True, limit=limit))
    lines = (
        f"{approval.approval_id}  {_state(approval):<14} "
        f"{worker_cells(approval.agent_id, approval.session_id)} {truncate(approval.reason)}"
        for approval in rows
    )
    print_list(rows, lines, "No approvals." if all_ else "No pending approvals.", as_json=as_json)


approvals = listing_group(
    list_approvals, description="Requests of the queen to terminate a worker.", example="approvals list --all"
)


@approvals.command("approve", epilog='Example: queenright approvals approve 01J... --reason "it loops"')
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
    outcome = _OUTCOMES.get(result.outcome or "") or f"{outcome_name(result.outcome)}: {result.detail}"
    print_result(result, f"{result.agent_id}: {outcome}", as_json=as_json)
    raise typer.Exit(0 if result.outcome == "done" else 1)


@approvals.command("deny", epilog='Example: queenright approvals deny 01J... --reason "let it finish"')
@with_service
def deny(
    service: Queenright,
    approval: ApprovalId,
    reason: Reason = "",
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """Deny a request: the worker keeps running, and the queen does not ask again for a while."""
    result = service.approvals.deny(approval, by=by, reason=reason)
    print_result(result, f"{result.agent_id}: denied, it keeps running.", as_json=as_json)


def _state(approval: Approval) -> str:
    if approval.status != "requested":
        return str(approval.outcome or approval.status)
    return f"{format_duration(max(0.0, approval.expires_at - time.time()))} left"
