"""Permission requests of coding agents, and their answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from queenright.cli.options import CURRENT_USER, AgentFilter, By, Json, Limit, Reason
from queenright.cli.output.printing import print_list, print_result
from queenright.cli.output.text import single_line, worker_cells
from queenright.cli.service import listing_group, require_text, with_service
from queenright.cli.short_ids import require_id
from queenright.instrumentation.durations import format_duration

if TYPE_CHECKING:
    from queenright.client.synchronous import Queenright

RequestId = Annotated[
    str,
    typer.Argument(callback=require_id, help="Id, or its beginning, as `queenright permissions` shows it."),
]


@with_service
def list_permissions(
    service: Queenright, agent: AgentFilter = None, as_json: Json = False, limit: Limit = 20
) -> None:
    """List the pending permission requests of coding agents, newest first."""
    if agent is not None:
        require_text(agent)
    rows = list(service.permissions.list(agent_id=agent, limit=limit))
    lines = (
        f"{request.request_id}  {format_duration(max(0.0, request.expires_at - time.time()))} left  "
        f"{worker_cells(request.agent_id, request.session_id)}\n  {single_line(request.question)}"
        for request in rows
    )
    print_list(rows, lines, "No pending permission requests.", as_json=as_json)


permissions = listing_group(
    list_permissions, description="Permission requests of coding agents.", example="permissions list"
)


@permissions.command("allow", epilog="Example: queenright permissions allow 018f...")
@with_service
def allow(
    service: Queenright,
    request: RequestId,
    reason: Reason = "",
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """Allow a request. Exit code 1 if the answer does not reach the agent."""
    _answer(service, "allow", request, reason, by, as_json=as_json)


@permissions.command("deny", epilog='Example: queenright permissions deny 018f... --reason "it is in use"')
@with_service
def deny(
    service: Queenright,
    request: RequestId,
    reason: Reason = "",
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """Deny a request; the agent receives the reason. Exit code 1 if the answer does not reach the agent."""
    _answer(service, "deny", request, reason, by, as_json=as_json)


def _answer(service: Queenright, decision: str, request: str, reason: str, by: str, *, as_json: bool) -> None:
    permission = service.permissions.answer(request, decision, by=by, reason=reason)
    text = f"Answered {single_line(permission.agent_id)}: {single_line(permission.message)}"
    if permission.outcome == "dry_run":
        text = "Dry run: logged, nothing was answered."
    print_result(permission, text, as_json=as_json)
    raise typer.Exit(0 if permission.delivered else 1)
