"""`queenright run`: run one agent in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.options import (
    Config,
    EntryPoint,
    InputText,
    Json,
    Model,
    SendTelemetry,
    SessionStorage,
)


def run(
    path: Annotated[Path, typer.Argument(help="Folder of the agent, with agent.json or agent.py.")],
    input_text: InputText = None,
    entry_point: EntryPoint = None,
    model: Model = None,
    storage: SessionStorage = None,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="Start the run in this session, with its memory.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Resume the unfinished run of this session.")
    ] = None,
    as_json: Json = False,
    config: Config = None,
    telemetry: SendTelemetry = True,
    approve_tools: Annotated[
        bool, typer.Option("--approve-tools", help="Ask before each tool call; y allows it.")
    ] = False,
    tui: Annotated[
        bool, typer.Option("--tui", help="Run in the terminal interface, monitored by a private service.")
    ] = False,
) -> None:
    """Run one agent in the terminal. Ctrl-C pauses it and prints the command to resume."""
    from queenright.cli.terminal.run_options import RunOptions

    options = RunOptions(
        path=path,
        input_text=input_text,
        entry_point=entry_point,
        model=model,
        storage=storage,
        session=session,
        resume=resume,
        as_json=as_json,
        config=config,
        telemetry=telemetry,
        approve_tools=approve_tools,
    )
    if tui:
        from queenright.cli.commands.tui import run_in_tui

        raise typer.Exit(run_in_tui(options))
    from queenright.cli.terminal.run_agent import run_agent

    raise typer.Exit(run_agent(options))
