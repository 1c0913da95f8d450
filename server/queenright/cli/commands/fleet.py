"""`queenright list`: the agents of a running service."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from queenright.cli.options import Json, TokenFile, Url
from queenright.cli.output.printing import to_json_values
from queenright.cli.output.text import fit, to_single_line, truncate_start
from queenright.cli.service import connect, describe_agent, example, list_failed_sessions, warn_about_limits
from queenright.client.address import LOCAL_URL
from queenright.instrumentation.counts import format_count

if TYPE_CHECKING:
    from queenright.api import AgentRow

_MIN_COLUMNS: Final = 80
_OTHER_COLUMNS: Final = 10 + 5 + 4 + 5
"""Health or outcome, steps, bad steps, and the spaces between them."""


@example("list --json")
def list_(
    as_json: Json = False,
    wide: Annotated[bool, typer.Option("--wide", help="Do not truncate names.")] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", "-w", help="Keep the list up to date until q. In a pipe: one line per change."
        ),
    ] = False,
    all_: Annotated[bool, typer.Option("--all", help="Include ended sessions.")] = False,
    url: Url = LOCAL_URL,
    token_file: TokenFile = None,
) -> None:
    """
    List the agents of a running service: health or outcome, session, task, steps, bad steps.

    A dash in the task column means that the worker named no task; use the session id instead. Names that do
    not fit the terminal are truncated with an ellipsis; see --wide. Commands accept the end of a session id.
    """
    if watch and all_:
        raise typer.BadParameter("--watch shows active sessions only; leave --all out")
    if watch:
        from queenright.cli.terminal.fleet_watch import run_watch

        raise typer.Exit(run_watch(url, token_file, wide=wide, as_json=as_json))
    _list_once(url, token_file, as_json=as_json, wide=wide, all_=all_)


def _list_once(url: str, token_file: Path | None, *, as_json: bool, wide: bool, all_: bool) -> None:
    with connect(url, token_file) as service:
        status = service.service.status()
        urgent_sessions = list_failed_sessions(status)
        rows = list(service.agents.list())
        agents = [a for a in rows if all_ or not a.ended or (a.agent_id, a.session_id) in urgent_sessions]
    if as_json:
        typer.echo(json.dumps([to_json_values(agent) for agent in agents], indent=2))
        return
    warn_about_limits(status)
    _print_agents(agents, wide=wide)
    if ended_count := len(rows) - len(agents):
        typer.echo(f"{format_count(ended_count, 'ended session')} not shown; see --all.")


def _print_agents(agents: list[AgentRow], *, wide: bool) -> None:
    """Print a line per agent, and its problem below it."""
    if not agents:
        typer.echo("No agents.")
        return
    rows = [
        [to_single_line(name) or "-" for name in (a.agent_id, a.session_id, _get_task_name(a))]
        for a in agents
    ]
    headings = ["agent", "session", "task"]
    widths = [max(len(row[n]) for row in [headings, *rows]) for n in range(3)]
    if not wide:
        widths = _fit_widths(widths)
    row_format = "{:<10} {} {} {} {:>5} {:>4}"
    lines = [row_format.format("health", *map(fit, headings, widths), "steps", "bad")]
    for a, (name, session, task) in zip(agents, rows, strict=True):
        cells = [
            fit(name, widths[0]),
            truncate_start(session, widths[1]).ljust(widths[1]),
            fit(task, widths[2]),
        ]
        # An ended session has an outcome instead of a health.
        lines.append(row_format.format(a.outcome or a.state, *cells, a.steps, a.bad_steps))
        if problem := describe_agent(a):
            problem = to_single_line(" ".join(problem.split()))
            lines.append(f"  {problem if wide else fit(problem, 76)}".rstrip())
    # A write for each line would take longer than the list.
    typer.echo("\n".join(lines))


def _fit_widths(widths: list[int]) -> list[int]:
    """Return column widths that fit the terminal; the widest column shrinks first."""
    room = max(shutil.get_terminal_size().columns, _MIN_COLUMNS) - _OTHER_COLUMNS
    widths = list(widths)
    while sum(widths) > room:
        widths[widths.index(max(widths))] -= 1
    return widths


def _get_task_name(agent: AgentRow) -> str:
    return "" if agent.task_id == agent.session_id else agent.task_id
