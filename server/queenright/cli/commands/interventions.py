"""Commands that act on workers through a running service."""

from __future__ import annotations

import shlex
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from queenright.cli.options import CURRENT_USER, Agent, AgentFilter, By, Json, Limit, Reason, Session
from queenright.cli.output.printing import print_list, print_result
from queenright.cli.output.text import format_local_time, format_worker_cells, get_outcome_name, truncate
from queenright.cli.service import describe_emergency_stop, example, require_text, with_service
from queenright.cli.short_ids import resolve_session, resolve_task

if TYPE_CHECKING:
    from queenright.api.interventions import NudgeResult, TerminationResult
    from queenright.api.recoveries import Recovery
    from queenright.client.synchronous import Queenright


class EmergencyStopAction(StrEnum):
    """What to do with the emergency stop."""

    ON = "on"
    OFF = "off"
    STATUS = "status"


@example('nudge researcher --message "Write down what blocks you."')
@with_service
def nudge(
    service: Queenright,
    agent: Agent,
    message: Annotated[str | None, typer.Option(help="Message. Default: the usual reminder.")] = None,
    session: Session = None,
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """
    Put a message into a worker's context.

    It is delivered at once, or when the worker fetches its instructions. Exit code 1 if neither is possible.
    """
    require_text(agent)
    if message is not None and not message.strip():
        raise typer.BadParameter("the message is blank; give a text, or leave --message out")
    nudge_result = service.agents.nudge(
        agent, message, session_id=resolve_session(service, agent, session), by=by
    )
    queue_text = f"Queued until the worker fetches it; `queenright interventions --agent {agent}` shows when."
    texts = {"done": "Delivered.", "queued": queue_text}
    print_result(
        nudge_result, texts.get(nudge_result.outcome) or _describe_outcome(nudge_result), as_json=as_json
    )
    raise typer.Exit(0 if nudge_result.delivered else 1)


@example('terminate researcher --reason "it deletes files"')
@with_service
def terminate(
    service: Queenright,
    agent: Agent,
    reason: Reason,
    session: Session = None,
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """Stop a worker. Its state is saved; it is not recovered automatically. Exit code 1 if it still runs."""
    require_text(agent)
    if not reason.strip():
        raise typer.BadParameter("the reason is blank; say why the worker is stopped")
    termination = service.agents.terminate(
        agent, reason, session_id=resolve_session(service, agent, session), by=by
    )
    checkpoint = (
        f" Its state is in checkpoint {termination.checkpoint_id}." if termination.checkpoint_id else ""
    )
    text = f"Terminated.{checkpoint}" if termination.terminated else _describe_outcome(termination)
    if termination.outcome == "unconfirmed" and not as_json:
        health = service.agents.health(agent, session_id=termination.session_id)
        text += (
            "\nEnd its process yourself, then run: "
            f"queenright recover {shlex.quote(health.task_id)} (which says when recovery starts)"
        )
    print_result(termination, text, as_json=as_json)
    raise typer.Exit(0 if termination.terminated else 1)


@example("recover session_20260124_researcher")
@with_service
def recover(
    service: Queenright,
    task: Annotated[
        str, typer.Argument(help="Task, as `queenright list` shows it. For unnamed tasks, the session id.")
    ],
    reviewed: Annotated[
        bool,
        typer.Option(
            "--reviewed", help="You reviewed the failure: allow one attempt beyond the limit. Audited."
        ),
    ] = False,
    from_start: Annotated[
        bool,
        typer.Option(
            "--from-start", help="Without a valid checkpoint, start over and repeat completed work. Audited."
        ),
    ] = False,
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """Recover a task from its last valid checkpoint, within the limits. Exit code 1 if it is refused."""
    recovery = service.recoveries.recover(
        resolve_task(service, task), by=by, reviewed=reviewed, from_start=from_start
    )
    wait = max(0.0, (recovery.not_before or 0.0) - time.time())
    when = f" in {wait:.0f} s" if wait >= 1 else ""
    text = f"Attempt {recovery.attempt} starts{when}." if recovery.accepted else f"Refused: {recovery.reason}"
    print_result(recovery, text, as_json=as_json)
    raise typer.Exit(0 if recovery.accepted else 1)


@example("recoveries --json")
@with_service
def recoveries(service: Queenright, as_json: Json = False, limit: Limit = 20) -> None:
    """List recoveries, newest first."""
    rows = list(service.recoveries.list(limit=limit))
    lines = (
        f"{format_local_time(r.created_at)}  {r.state:<10} {format_worker_cells(r.agent_id, r.session_id)} "
        f"{_format_attempt(r)}  {r.task_id}  {truncate(r.outcome or r.reason)}"
        for r in rows
    )
    print_list(rows, lines, "No recoveries.", as_json=as_json)


def _format_attempt(recovery: Recovery) -> str:
    attempt = f"attempt {recovery.attempt}" if recovery.attempt else "no attempt"
    return f"{attempt} from the start" if recovery.from_start else attempt


@example("interventions --agent researcher")
@with_service
def interventions(
    service: Queenright, agent: AgentFilter = None, as_json: Json = False, limit: Limit = 20
) -> None:
    """List interventions, newest first: done, refused, or logged by a dry run."""
    if agent is not None:
        require_text(agent)
    rows = list(service.interventions.list(agent_id=agent, limit=limit))
    if agent is not None and not rows:
        service.agents.health(agent)  # Raises for an unknown worker.
    lines = (
        f"{format_local_time(i.created_at)}  {i.kind:<9} {i.outcome:<12} "
        f"{format_worker_cells(i.agent_id, i.session_id)} "
        f"{'automatic' if i.by == 'ladder' else f'by {i.by}'}: {truncate(i.detail or i.reason)}"
        for i in rows
    )
    print_list(rows, lines, "No interventions.", as_json=as_json)


@example('stop-acting on --reason "provider is down"')
@with_service
def stop_acting(
    service: Queenright,
    switch: Annotated[
        EmergencyStopAction, typer.Argument(help="on: stop all interventions. off: resume. status: show.")
    ],
    reason: Annotated[str, typer.Option(help="Reason for the audit trail. Required for on.")] = "",
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """Set the emergency stop, which freezes all interventions. Detection and notifications continue."""
    if switch is EmergencyStopAction.ON and not reason.strip():
        raise typer.BadParameter("--reason is required to turn the emergency stop on")
    if switch is EmergencyStopAction.ON:
        # No other request comes first: the stop must not depend on one.
        state = service.service.set_emergency_stop(True, reason.strip(), by=by)
        text = "The emergency stop is on."
    elif switch is EmergencyStopAction.OFF:
        was_on = service.service.emergency_stop().on
        state = service.service.set_emergency_stop(False, reason.strip() or "released", by=by)
        text = f"The emergency stop {'is off; pending waits resume' if was_on else 'was off already'}."
    else:
        state = service.service.emergency_stop()
        text = describe_emergency_stop(state)
    print_result(state, text, as_json=as_json)


def _describe_outcome(result: NudgeResult | TerminationResult) -> str:
    if result.outcome == "dry_run":
        return "Dry run: logged, nothing was done."
    return f"{get_outcome_name(result.outcome).capitalize()}: {result.detail}"
