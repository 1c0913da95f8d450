"""`queenright list`: the agents of a running service."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from queenright.cli.service import (
    LOCAL,
    Json,
    TokenFile,
    Url,
    connect,
    cut,
    cut_front,
    on_one_line,
    say_brakes,
    values,
)

if TYPE_CHECKING:
    from queenright.api.status import Status


_LEAST_COLUMNS: Final = 80
_BESIDE_NAMES: Final = 10 + 5 + 4 + 5
"""State, steps, bad steps, and the blanks between."""


def list_(
    as_json: Json = False,
    wide: Annotated[bool, typer.Option("--wide", help="Nothing is cut.")] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", "-w", help="Keep the list as it is now; q ends it. A line a change in a pipe."
        ),
    ] = False,
    all_: Annotated[bool, typer.Option("--all", help="Ended sessions too.")] = False,
    url: Url = LOCAL,
    token_file: TokenFile = None,
) -> None:
    """
    List the agents of a running service: state, session, task, steps, bad steps since a good one.

    A task is what the worker says it is about; a dash: it has none, and goes by its session's id. Names that
    are cut, to fit the terminal, have an ellipsis; see --wide.
    """
    if watch and all_:
        raise typer.BadParameter("--watch shows the sessions at work only; leave --all out")
    if watch:
        from queenright.cli.output.fleet_watch import run_watch

        raise typer.Exit(run_watch(url, token_file, wide=wide, as_json=as_json))
    with connect(url, token_file) as service:
        troubled = in_trouble(service.service.status())
        known = list(service.agents.list())
        agents = [values(a) for a in known if all_ or not a.ended or (a.agent_id, a.session_id) in troubled]
        if as_json:
            typer.echo(json.dumps(agents, indent=2))
            return
        say_brakes(service)
    _print_agents(agents, wide=wide)
    if ended := len(known) - len(agents):
        typer.echo(
            f"{ended} ended session{' is' if ended == 1 else 's are'} not shown; --all shows "
            f"{'it' if ended == 1 else 'them'}."
        )


def in_trouble(status: Status) -> set[tuple[str, str]]:
    """Return the names and sessions of workers that ended, and not well: somebody has yet to see to them."""
    return {(one.agent_id, one.session_id) for one in status.agents if one.ended}


def _print_agents(agents: list[dict[str, Any]], *, wide: bool) -> None:
    """Print a line an agent, and one below it with what is the matter."""
    if not agents:
        typer.echo("No agents.")
        return
    rows = [
        [on_one_line(name) or "-" for name in (a["agent_id"], a["session_id"], _task_of(a))] for a in agents
    ]
    names = ["agent", "session", "task"]
    widths = [max(len(row[n]) for row in [names, *rows]) for n in range(3)]
    if not wide:
        widths = _fitted(widths)
    line = "{:<10} {} {} {} {:>5} {:>4}"
    typer.echo(line.format("state", *_cut(names, widths), "steps", "bad"))
    for a, row in zip(agents, rows, strict=True):
        name, session, task = row
        shown = [cut(name, widths[0]), cut_front(session, widths[1]).ljust(widths[1]), cut(task, widths[2])]
        typer.echo(line.format(_state_of(a), *shown, a["steps"], a["bad_steps"]))
        if why := _wait_of(a) if a["waiting"] and not a["ended"] else a["reason"] if a["findings"] else "":
            why = on_one_line(" ".join(why.split()))
            typer.echo(f"  {why if wide else _cut([why], [76])[0]}".rstrip())


def _fitted(widths: list[int]) -> list[int]:
    """Return the widths of names so that a line fits the terminal; the widest gives way first."""
    room = max(shutil.get_terminal_size().columns, _LEAST_COLUMNS) - _BESIDE_NAMES
    fitted = list(widths)
    while sum(fitted) > room:
        fitted[fitted.index(max(fitted))] -= 1
    return fitted


def _state_of(agent: dict[str, Any]) -> str:
    """Return how an agent is; of a session that is over and needs nobody, how it ended."""
    return str(agent["outcome" if agent["ended"] and agent["state"] == "healthy" else "state"])


def _wait_of(agent: dict[str, Any]) -> str:
    asked = f": {agent['question']}" if agent["question"] else ""
    return f"{agent['activity']}{asked}"


def _task_of(agent: dict[str, Any]) -> str:
    return "" if agent["task_id"] == agent["session_id"] else agent["task_id"]


def _cut(texts: list[str], widths: list[int]) -> list[str]:
    return [cut(text, width) for text, width in zip(texts, widths, strict=True)]
