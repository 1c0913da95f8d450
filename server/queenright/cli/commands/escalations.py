"""Questions to the orchestrator, and their answers."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated

import typer

from queenright.cli.service import (
    LOCAL,
    WHO,
    By,
    Json,
    Many,
    TokenFile,
    Url,
    connect,
    cut,
    named,
    refuse_options,
    say_brakes,
    short,
    tell,
    tell_all,
)
from queenright.instrumentation.durations import format_duration

All = Annotated[bool, typer.Option("--all", help="Those with an answer too.")]

escalations = typer.Typer(help="Questions to the orchestrator, and their answers.")


class Decision(StrEnum):
    """What can be decided about a worker."""

    MORE_TIME = "more_time"
    HAND_OFF = "hand_off"
    TERMINATE = "terminate"


@escalations.callback(invoke_without_command=True, epilog="Example: queenright escalations --json")
def escalations_(
    context: typer.Context,
    all_: All = False,
    as_json: Json = False,
    limit: Many = 20,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """Questions to the orchestrator, and their answers."""
    if context.invoked_subcommand is None:
        list_escalations(all_, as_json, limit, url, token_file)
    else:
        refuse_options(context)


@escalations.command("list", epilog="Example: queenright escalations list --all")
def list_escalations(
    all_: All = False,
    as_json: Json = False,
    limit: Many = 20,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """List escalations that wait for a decision."""
    with connect(url, token_file) as service:
        found = list(service.escalations.list(only_open=None if all_ else True, limit=limit))
        frozen = not as_json and say_brakes(service)
    lines = []
    for e in found:
        pending = _left(e.deadline - time.time(), frozen=frozen)
        state = pending if e.status == "pending" else e.decision or e.status
        lines.append(f"{e.escalation_id}  {state:<14} {cut(e.agent_id, 24)} {short(e.reason)}")
    tell_all(found, lines, "No escalations." if all_ else "Nothing waits for a decision.", as_json=as_json)


@escalations.command("decide", epilog="Example: queenright escalations decide 01J... more_time --minutes 30")
def decide(
    escalation: Annotated[str, typer.Argument(help="Its id.")],
    decision: Annotated[Decision, typer.Argument(help="What is to become of the worker.")],
    reason: Annotated[str, typer.Option(help="Why; it is kept in the audit trail.")] = "",
    minutes: Annotated[
        float | None, typer.Option(min=0.1, max=10_080, help="How much more time; by settings, without.")
    ] = None,
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """Answer an escalation."""
    if minutes is not None and decision is not Decision.MORE_TIME:
        raise typer.BadParameter(f"--minutes is for more_time, not for {decision.value}")
    seconds = minutes * 60 if minutes is not None else None
    with connect(url, token_file) as service:
        done = service.escalations.decide(
            named(escalation), decision.value, reason=reason, more_time_seconds=seconds, by=by
        )
    tell(done, f"{done.agent_id}: {decision.value.replace('_', ' ')}.", as_json=as_json)


def _left(seconds: float, *, frozen: bool) -> str:
    if frozen:
        return "frozen"
    if seconds <= 0:
        return "waits its turn"
    return f"{format_duration(seconds)} left"
