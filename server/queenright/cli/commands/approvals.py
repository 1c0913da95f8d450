"""Approvals: what the queen wants done to a worker, and your word on it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

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
    short,
    tell,
    tell_all,
)
from queenright.instrumentation.durations import format_duration

if TYPE_CHECKING:
    from queenright.api.acting import Approval

All = Annotated[bool, typer.Option("--all", help="Those that are over too.")]
Which = Annotated[str, typer.Argument(help="Its id, as `queenright approvals` shows it.")]
Why = Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit trail.")]

_BECAME = {
    "done": "It has stopped.",
    "dry_run": "Dry run: it is written down, and nothing was done.",
}

approvals = typer.Typer(help="Requests of the queen to stop a worker, and your word on them.")


@approvals.callback(invoke_without_command=True, epilog="Example: queenright approvals --json")
def approvals_(
    context: typer.Context,
    all_: All = False,
    as_json: Json = False,
    limit: Many = 20,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """List requests to stop a worker that wait for your approval."""
    if context.invoked_subcommand is None:
        list_approvals(all_, as_json, limit, url, token_file)
    else:
        refuse_options(context)


@approvals.command("list", epilog="Example: queenright approvals list --all")
def list_approvals(
    all_: All = False, as_json: Json = False, limit: Many = 20, url: Url = LOCAL, token_file: TokenFile = None
) -> None:
    """List requests to stop a worker that wait for your approval, newest first."""
    with connect(url, token_file) as service:
        found = list(service.approvals.list(only_open=None if all_ else True, limit=limit))
    lines = (
        f"{one.approval_id}  {_state(one):<14} {cut(one.agent_id, 24)} {short(one.reason)}" for one in found
    )
    tell_all(found, lines, "No approvals." if all_ else "Nothing waits for your approval.", as_json=as_json)


@approvals.command("approve", epilog='Example: queenright approvals approve 01J... --reason "it loops"')
def approve(
    approval: Which,
    reason: Why = "",
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """Stop the worker, as it was asked for. Exit code 1 if it goes on: its request may be void by now."""
    with connect(url, token_file) as service:
        done = service.approvals.approve(named(approval, "id"), by=by, reason=reason)
    became = _BECAME.get(done.outcome or "") or f"{str(done.outcome).capitalize()}: {done.detail}"
    tell(done, f"{done.agent_id}: {became}", as_json=as_json)
    raise typer.Exit(0 if done.outcome == "done" else 1)


@approvals.command("deny", epilog='Example: queenright approvals deny 01J... --reason "let it finish"')
def deny(
    approval: Which,
    reason: Why = "",
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """Leave the worker alone; for a while it is not asked for again."""
    with connect(url, token_file) as service:
        done = service.approvals.deny(named(approval, "id"), by=by, reason=reason)
    tell(done, f"{done.agent_id}: it goes on.", as_json=as_json)


def _state(one: Approval) -> str:
    if one.status != "requested":
        return str(one.outcome or one.status)
    left = max(0.0, one.expires_at - time.time())
    return f"{format_duration(left)} left"
