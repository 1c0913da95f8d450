"""`queenright code`: an agent that builds agents, in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.commands.shell import Resume
from queenright.cli.options import Config, SendTelemetry, SessionStorage


def code(
    folder: Annotated[
        Path, typer.Argument(help="Workspace. The agent reads, writes and loads only here.")
    ] = Path(),
    model: Annotated[str | None, typer.Option(help="litellm model or scripted:FILE. Required.")] = None,
    storage: SessionStorage = None,
    resume: Resume = None,
    config: Config = None,
    telemetry: SendTelemetry = True,
) -> None:
    """
    Build agents with a coding agent that writes, runs and fixes them here.

    A guardian agent handles failed runs: it asks you if you are present, and otherwise fixes them. Code that
    they write and load runs with your rights; only their file tools are limited to the workspace.
    """
    from queenright.cli.coder.session import run_code
    from queenright.cli.terminal.shell import ShellOptions

    if not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {folder}; create it first", param_hint="folder")
    if not model:
        raise typer.BadParameter("name a model, such as --model anthropic/claude-sonnet-4-5")
    options = ShellOptions(
        folder=folder, model=model, storage=storage, resume=resume, config=config, telemetry=telemetry
    )
    raise typer.Exit(run_code(options))
