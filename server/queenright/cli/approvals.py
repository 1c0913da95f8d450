"""Approvals: what the queen wants done to a worker, and your word on it."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from queenright.cli.acting import LOCAL, WHO, By, Json, Many, Url, cut, refuse_options

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
    context: typer.Context, all_: All = False, as_json: Json = False, limit: Many = 20, url: Url = LOCAL
) -> None:
    """List requests to stop a worker that wait for your approval."""
    if context.invoked_subcommand is None:
        list_approvals(all_, as_json, limit, url)
    else:
        refuse_options(context.invoked_subcommand, all_ or as_json or limit != 20 or url != LOCAL)


@approvals.command("list", epilog="Example: queenright approvals list --all")
def list_approvals(all_: All = False, as_json: Json = False, limit: Many = 20, url: Url = LOCAL) -> None:
    """List requests to stop a worker that wait for your approval, newest first."""
    from queenright.cli.ask import ask

    only = "" if all_ else "&open=true"
    found = ask(url, f"/api/approvals?limit={limit}{only}")["approvals"]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for one in found:
        why = " ".join(one["reason"].split())
        why = why if len(why) <= 100 else f"{why[:99]}…"
        typer.echo(f"{one['approval_id']}  {_state(one):<14} {cut(one['agent_id'], 24)} {why}")
    if not found:
        typer.echo("No approvals." if all_ else "Nothing waits for your approval.")


@approvals.command("approve", epilog='Example: queenright approvals approve 01J... --reason "it loops"')
def approve(approval: Which, reason: Why = "", by: By = WHO, as_json: Json = False, url: Url = LOCAL) -> None:
    """Stop the worker, as it was asked for. Exit code 1 if it goes on: its request may be void by now."""
    done = _say(url, approval, "approve", by, reason)
    became = _BECAME.get(done["outcome"]) or f"{str(done['outcome']).capitalize()}: {done['detail']}"
    typer.echo(json.dumps(done, indent=2) if as_json else f"{done['agent_id']}: {became}")
    raise typer.Exit(0 if done["outcome"] == "done" else 1)


@approvals.command("deny", epilog='Example: queenright approvals deny 01J... --reason "let it finish"')
def deny(approval: Which, reason: Why = "", by: By = WHO, as_json: Json = False, url: Url = LOCAL) -> None:
    """Leave the worker alone; for a while it is not asked for again."""
    done = _say(url, approval, "deny", by, reason)
    typer.echo(json.dumps(done, indent=2) if as_json else f"{done['agent_id']}: it goes on.")


def _say(url: str, approval: str, word: str, by: str, reason: str) -> dict[str, Any]:
    from queenright.cli.ask import ask, segment

    if not approval.strip():
        # A script's unset variable; the path would be another one without it.
        raise typer.BadParameter("the id is empty")
    path = f"/api/approvals/{segment(approval)}/{word}"
    return ask(url, path, method="POST", body={"by": by, "reason": reason})


def _state(one: dict[str, Any]) -> str:
    if one["status"] != "requested":
        return str(one["outcome"] or one["status"])
    left = max(0.0, one["expires_at"] - time.time())
    return f"{left:.0f} s left" if left < 90 else f"{left / 60:.0f} min left"
