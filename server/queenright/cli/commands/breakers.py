"""Circuit breakers of workers' calls: the list, and closing one by hand."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from queenright.cli import completion_names as names
from queenright.cli.service import (
    LOCAL,
    WHO,
    By,
    Json,
    TokenFile,
    Url,
    connect,
    named,
    refuse_options,
    short,
    tell,
    tell_all,
)

OnlyOpen = Annotated[bool, typer.Option("--open", help="Only those that are not closed.")]

breakers = typer.Typer(help="Circuit breakers of workers' calls.")


@breakers.callback(invoke_without_command=True, epilog="Example: queenright breakers --json")
def breakers_(
    context: typer.Context,
    only_open: OnlyOpen = False,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """Circuit breakers of workers' calls."""
    if context.invoked_subcommand is None:
        list_breakers(only_open, as_json, url, token_file)
    else:
        refuse_options(context)


@breakers.command("list", epilog="Example: queenright breakers list --open")
def list_breakers(
    only_open: OnlyOpen = False, as_json: Json = False, url: Url = LOCAL, token_file: TokenFile = None
) -> None:
    """List circuit breakers, those that are not closed first."""
    with connect(url, token_file) as service:
        found = sorted(
            service.breakers.list(only_open=True if only_open else None), key=lambda b: b.state == "closed"
        )
    lines = []
    for b in found:
        left = max(0.0, b.half_open_at - time.time()) if b.half_open_at else 0.0
        when = f"half open in {left:.0f} s  " if b.state == "open" else ""
        count = f"{b.failures}/{b.threshold}"
        lines.append(f"{b.state:<10} {count:>6}  {b.name:<40} {when}{short(b.reason)}")
    none = "No circuit breaker is open." if only_open else "No circuit breakers."
    tell_all(found, lines, none, as_json=as_json)


@breakers.command("reset", epilog="Example: queenright breakers reset tool_execution:researcher:search")
def reset(
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=names.breakers, help="Its name, as `queenright breakers list` shows it."
        ),
    ],
    by: By = WHO,
    as_json: Json = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """Close a circuit breaker by hand; the next calls pass."""
    with connect(url, token_file) as service:
        done = service.breakers.reset(named(name), by=by)
    tell(done, f"{done.name} is {done.state}.", as_json=as_json)
