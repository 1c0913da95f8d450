"""`queenright list`: the agents of a running service."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from queenright.cli.options import Json


def list_(
    as_json: Json = False,
    wide: Annotated[bool, typer.Option("--wide", help="Nothing is cut.")] = False,
    url: Annotated[str, typer.Option(help="Where the service is.")] = "http://127.0.0.1:8420",
) -> None:
    """
    List the agents of a running service: state, session, task, steps, bad steps since a good one.

    A task is what the worker says it is about; a dash: it has none, and goes by its session's id. Names that
    are cut, to fit 80 columns, end in an ellipsis; see --wide.
    """
    from queenright.cli.acting import say_brakes
    from queenright.cli.ask import ask_all

    agents = [a for a in ask_all(url, "/api/agents", "agents") if not a["ended"]]
    if as_json:
        typer.echo(json.dumps(agents, indent=2))
        return
    say_brakes(url)
    _print_agents(agents, wide=wide)


def _print_agents(agents: list[dict[str, Any]], *, wide: bool) -> None:
    """Print a line an agent, and one below it with what is the matter."""
    if not agents:
        typer.echo("No agents.")
        return
    rows = [
        [a["agent_id"], a["session_id"], "-" if a["task_id"] == a["session_id"] else a["task_id"]]
        for a in agents
    ]
    names = ["agent", "session", "task"]
    widths = [max(len(row[n]) for row in [names, *rows]) for n in range(3)]
    if not wide:
        widths = [min(width, most) for width, most in zip(widths, (22, 16, 14), strict=True)]
    line = "{:<10} {} {} {} {:>5} {:>4}"
    typer.echo(line.format("state", *_cut(names, widths), "steps", "bad"))
    for a, row in zip(agents, rows, strict=True):
        typer.echo(line.format(a["state"], *_cut(row, widths), a["steps"], a["bad_steps"]))
        if why := f"waits: {a['waiting']}" if a["waiting"] else a["reason"] if a["findings"] else "":
            why = " ".join(why.split())
            typer.echo(f"  {why if wide else _cut([why], [76])[0]}".rstrip())


def _cut(texts: list[str], widths: list[int]) -> list[str]:
    from queenright.cli.acting import cut

    return [cut(text, width) for text, width in zip(texts, widths, strict=True)]
