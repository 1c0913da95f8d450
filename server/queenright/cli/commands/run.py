"""`queenright run`: run one agent in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from queenright.cli.service import example, with_options
from queenright.cli.terminal.run_options import RunOptions


@example('run examples/docs_checker --input \'{"folder": "docs"}\'')
@with_options(RunOptions)
def run(
    options: RunOptions,
    tui: Annotated[
        bool, typer.Option("--tui", help="Run in the terminal interface, monitored by a private service.")
    ] = False,
) -> None:
    """Run one agent in the terminal. Ctrl-C pauses it and prints the command to resume."""
    if tui:
        from queenright.cli.commands.tui import run_in_tui

        raise typer.Exit(run_in_tui(options))
    from queenright.cli.terminal.run_agent import run_agent

    raise typer.Exit(run_agent(options))
