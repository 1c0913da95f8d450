"""`queenright shell`: talk with one agent in the terminal, run after run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.options import Config, SessionStorage


def shell(
    folder: Annotated[Path, typer.Argument(help="The agent's folder, with agent.json or agent.py.")],
    model: Annotated[
        str | None, typer.Option(help="litellm model, or scripted:FILE, in place of the agent's own.")
    ] = None,
    storage: SessionStorage = None,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Begin with what this session left unfinished.")
    ] = None,
    config: Config = None,
    telemetry: Annotated[bool, typer.Option(help="Send telemetry to OTEL_EXPORTER_OTLP_ENDPOINT.")] = True,
) -> None:
    """
    Talk with an agent in the terminal, run after run; /help says what else it obeys.

    What you type answers the agent if it waits for you, and starts a run if it does not. Without a terminal
    every line of the input is typed. Exit code 1 if the last run did not get to its end.
    """
    from queenright.cli.terminal.shell import ShellOptions, run_shell

    if not folder.exists():
        raise typer.BadParameter(f"there is no agent at {folder}", param_hint="folder")
    options = ShellOptions(
        folder=folder, model=model, storage=storage, resume=resume, config=config, telemetry=telemetry
    )
    raise typer.Exit(run_shell(options))
