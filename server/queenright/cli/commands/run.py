"""`queenright run`: one agent, in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.options import Config, Json
from queenright.cli.options import path as to_path


def run(
    path: Annotated[Path, typer.Argument(help="The agent's folder, with agent.json or agent.py.")],
    input_text: Annotated[
        str | None, typer.Option("--input", metavar="JSON|@FILE", help="What the run is given: an object.")
    ] = None,
    entry_point: Annotated[
        str | None, typer.Option(metavar="ID", help="Where to begin; its first manual entry point.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="litellm model, or scripted:FILE, in place of the agent's own.")
    ] = None,
    storage: Annotated[
        Path | None,
        typer.Option(
            parser=to_path,
            metavar="PATH",
            help="Folder of its sessions; ~/.queenright/agents/NAME by default.",
        ),
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="Begin in this session, with what it knows.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on with what this session left unfinished.")
    ] = None,
    as_json: Json = False,
    config: Config = None,
    telemetry: Annotated[bool, typer.Option(help="Send telemetry to OTEL_EXPORTER_OTLP_ENDPOINT.")] = True,
    approve_tools: Annotated[
        bool, typer.Option("--approve-tools", help="Ask before each tool call; y allows it.")
    ] = False,
    tui: Annotated[
        bool, typer.Option("--tui", help="In the terminal interface, watched by a service of its own.")
    ] = False,
) -> None:
    """Run one agent in the terminal. Ctrl-C pauses it and says how to go on."""
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
        from queenright.cli.commands.tui import run_in_interface

        raise typer.Exit(run_in_interface(options))
    from queenright.cli.terminal.run_agent import run_agent

    raise typer.Exit(run_agent(options))
