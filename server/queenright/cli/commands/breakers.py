"""Circuit breakers of workers' calls."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from queenright.cli.completion_names import complete_breakers
from queenright.cli.options import CURRENT_USER, By, Json
from queenright.cli.output.printing import print_list, print_result
from queenright.cli.output.text import truncate
from queenright.cli.service import make_listing_group, require_text, with_service
from queenright.instrumentation.counts import format_count

if TYPE_CHECKING:
    from queenright.client.synchronous import Queenright


@with_service
def list_breakers(
    service: Queenright,
    only_open: Annotated[bool, typer.Option("--open", help="Only breakers that are not closed.")] = False,
    as_json: Json = False,
) -> None:
    """List circuit breakers, open ones first."""
    rows = sorted(
        service.breakers.list(only_open=True if only_open else None), key=lambda b: b.state == "closed"
    )
    lines = []
    for b in rows:
        seconds = max(0.0, b.half_open_at - time.time()) if b.half_open_at else 0.0
        when = f"half open in {seconds:.0f} s  " if b.state == "open" and b.half_open_at else ""
        count = f"{b.failures} of {format_count(b.threshold, 'failure')}" if b.threshold else ""
        lines.append(f"{b.state.replace('_', ' '):<10} {count:>14}  {b.name:<40} {when}{truncate(b.reason)}")
    empty = "No circuit breaker is open." if only_open else "No circuit breakers."
    print_list(rows, lines, empty, as_json=as_json)


breakers = make_listing_group(list_breakers, example="breakers list --open")


@breakers.command("reset", epilog="Example: queenright breakers reset tool_execution:researcher:search")
@with_service
def reset(
    service: Queenright,
    name: Annotated[
        str,
        typer.Argument(autocompletion=complete_breakers, help="Name, as `queenright breakers` shows it."),
    ],
    by: By = CURRENT_USER,
    as_json: Json = False,
) -> None:
    """Close a circuit breaker; calls go through again."""
    breaker = service.breakers.reset(require_text(name), by=by)
    print_result(breaker, f"{breaker.name} is {breaker.state}.", as_json=as_json)
