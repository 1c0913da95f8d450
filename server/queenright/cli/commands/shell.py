"""`queenright shell`: a conversation with one agent in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.options import Config, Model, SendTelemetry, SessionStorage

Resume = Annotated[
    str | None, typer.Option(metavar="ID", help="First resume the unfinished run of this session.")
]


def shell(
    folder: Annotated[Path, typer.Argument(help="Folder of the agent, with agent.json or agent.py.")],
    model: Model = None,
    storage: SessionStorage = None,
    resume: Resume = None,
    config: Config = None,
    telemetry: SendTelemetry = True,
) -> None:
    """
    Talk with an agent in the terminal, run after run; /help lists the commands.

    Input goes to the node that waits for it, or else starts a run. Without a terminal, every line of stdin is
    input. Exit code 1 if the last run did not complete.
    """
    from queenright.cli.terminal.shell import ShellOptions, run_shell

    if not folder.exists():
        raise typer.BadParameter(f"there is no agent at {folder}", param_hint="folder")
    options = ShellOptions(
        folder=folder, model=model, storage=storage, resume=resume, config=config, telemetry=telemetry
    )
    raise typer.Exit(run_shell(options))
