"""Permissions: what coding agents ask before they do it, and your answer."""

from __future__ import annotations

import time
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
    named,
    on_one_line,
    refuse_options,
    tell,
    tell_all,
)
from queenright.instrumentation.durations import format_duration

Which = Annotated[str, typer.Argument(help="Its id, as `queenright permissions` shows it.")]
Why = Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit trail.")]
OfAgent = Annotated[str | None, typer.Option("--agent", help="Of this agent only.")]

permissions = typer.Typer(help="What coding agents ask permission for, and your answer.")


@permissions.callback(invoke_without_command=True, epilog="Example: queenright permissions --json")
def permissions_(
    context: typer.Context,
    agent: OfAgent = None,
    as_json: Json = False,
    limit: Many = 20,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """List the permission requests that wait for your answer."""
    if context.invoked_subcommand is None:
        list_permissions(agent, as_json, limit, url, token_file)
    else:
        refuse_options(context)


@permissions.command("list", epilog="Example: queenright permissions list")
def list_permissions(
    agent: OfAgent = None,
    as_json: Json = False,
    limit: Many = 20,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """List the permission requests that wait for your answer, newest first."""
    if agent is not None:
        named(agent)
    with connect(url, token_file) as service:
        found = list(service.permissions.list(agent_id=agent, limit=limit))
    lines = (
        f"{one.request_id}  {format_duration(max(0.0, one.expires_at - time.time()))} left  "
        f"{on_one_line(one.agent_id)}\n  {on_one_line(one.question)}"
        for one in found
    )
    tell_all(found, lines, "No permission request waits for your answer.", as_json=as_json)


@permissions.command("allow", epilog="Example: queenright permissions allow 018f...")
def allow(
    request: Which,
    reason: Why = "",
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """Let the agent do it. Exit code 1 if the answer does not get there."""
    _answer("allow", request, reason, by, as_json, url, token_file)


@permissions.command("deny", epilog='Example: queenright permissions deny 018f... --reason "it is in use"')
def deny(
    request: Which,
    reason: Why = "",
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """Forbid it; the agent is told the reason. Exit code 1 if the answer does not get there."""
    _answer("deny", request, reason, by, as_json, url, token_file)


def _answer(
    decision: str, request: str, reason: str, by: str, as_json: bool, url: str, token_file: TokenFile
) -> None:
    with connect(url, token_file) as service:
        done = service.permissions.answer(named(request, "id"), decision, by=by, reason=reason)
    words = f"{on_one_line(done.agent_id)} has your answer: {on_one_line(done.message)}"
    if done.outcome == "dry_run":
        words = "Dry run: it is written down, and nothing was answered."
    tell(done, words, as_json=as_json)
    raise typer.Exit(0 if done.delivered else 1)
