"""`queenright code`: build agents with an agent, in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.options import Config, SessionStorage


def code(
    folder: Annotated[
        Path, typer.Argument(help="The workspace: it reads, writes and loads only here.")
    ] = Path(),
    model: Annotated[
        str | None, typer.Option(help="litellm model, or scripted:FILE: who thinks. Needed.")
    ] = None,
    storage: SessionStorage = None,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Begin with what this session left unfinished.")
    ] = None,
    config: Config = None,
    telemetry: Annotated[bool, typer.Option(help="Send telemetry to OTEL_EXPORTER_OTLP_ENDPOINT.")] = True,
) -> None:
    """
    Build agents with an agent: it writes them, runs them here, and mends them when they fail.

    A guardian is told of every run that fails: it asks you if you are there, and mends it if you are not.
    What they write and load runs as you, like any code of yours; only their file tools are bound to the
    folder.
    """
    from queenright.cli.coder.session import run_code
    from queenright.cli.terminal.shell import ShellOptions

    if not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {folder}; make it first", param_hint="folder")
    if not model:
        raise typer.BadParameter("say who thinks, like --model anthropic/claude-sonnet-4-5")
    options = ShellOptions(
        folder=folder, model=model, storage=storage, resume=resume, config=config, telemetry=telemetry
    )
    raise typer.Exit(run_code(options))
