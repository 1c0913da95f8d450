"""Escalations to the orchestrator, and decisions on them."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from queenright.cli.options import CURRENT_USER, By, Json, Limit
from queenright.cli.output.printing import print_list, print_result
from queenright.cli.output.text import truncate, worker_cells
from queenright.cli.service import listing_group, warn_about_limits, with_service
from queenright.cli.short_ids import require_id
from queenright.instrumentation.durations import format_duration

if TYPE_CHECKING:
    from queenright.client.synchronous import Queenright

All = Annotated[bool, typer.Option("--all", help="Include decided ones.")]


class EscalationDecision(StrEnum):
    """A decision about a worker."""

    MORE_TIME = "more_time"
    HAND_OFF = "hand_off"
    TERMINATE = "terminate"


@with_service
def list_escalations(
    service: Queenright, all_: All = False, as_json: Json = False, limit: Limit = 20
) -> None:
    """List the escalations that wait for a decision."""
    rows = list(service.escalations.list(only_open=None if all_ else True, limit=limit))
    frozen = not as_json and warn_about_limits(service.service.status())
    lines = []
    for e in rows:
        pending = _time_left(e.deadline - time.time(), frozen=frozen)
        state = pending if e.status == "pending" else e.decision or e.status
        lines.append(
            f"{e.escalation_id}  {state:<14} {worker_cells(e.agent_id, e.session_id)} {truncate(e.reason)}"
        )
    print_list(rows, lines, "No escalations." if all_ else "No pending escalations.", as_json=as_json)


escalations = listing_group(
    list_escalations,
    description="Escalations to the orchestrator, and decisions on them.",
    example="escalations list --all",
)


@escalations.command("decide", epilog="Example: queenright escalations decide 01J... more_time --minutes 30")
@with_service
def decide(
    service: Queenright,
    escalation: Annotated[
        str,
        typer.Argument(
            callback=require_id, help="Id, or its beginning, as `queenright escalations` shows it."
        ),
    ],
    decision: Annotated[EscalationDecision, typer.Argument(help="Decision about the worker.")],
    reason: Annotated[str, typer.Option(help="Reason for the audit trail.")] = "",
    minutes: Annotated[
        float | None, typer.Option(min=0.1, max=10_080, help="Minutes of more_time. Default: from settings.")
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


def _time_left(seconds: float, *, frozen: bool) -> str:
    if frozen:
        return "frozen"
    return f"{format_duration(seconds)} left" if seconds > 0 else "due"
