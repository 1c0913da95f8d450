"""`queenright shell` and `queenright code`: a conversation in the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.options import Model, ShellOptions
from queenright.cli.service import example, with_options


@example("shell examples/docs_checker")
@with_options(ShellOptions)
def shell(
    options: ShellOptions,
    folder: Annotated[Path, typer.Argument(help="Folder of the agent, with agent.json or agent.py.")],
    model: Model = None,
) -> None:
    """
    Talk with an agent in the terminal, run after run; /help lists the commands.

    Input goes to the node that waits for it, or else starts a run. Without a terminal, every line of stdin is
    input. Exit code 1 if the last run did not complete.
    """
    from queenright.cli.terminal.shell import run_shell

    if not folder.exists():
        raise typer.BadParameter(
            f"there is no agent at {folder}; pass a folder with agent.json or agent.py", param_hint="folder"
        )
    raise typer.Exit(run_shell(folder, options, model=model))


@example("code agents --model anthropic/claude-sonnet-4-5")
@with_options(ShellOptions)
def code(
    options: ShellOptions,
    folder: Annotated[
        Path, typer.Argument(help="Workspace. The agent reads, writes and loads only here.")
    ] = Path(),
    model: Annotated[str | None, typer.Option(help="litellm model or scripted:FILE. Required.")] = None,
) -> None:
    """
    Build agents with a coding agent that writes, runs and fixes them here.

    A guardian agent handles failed runs: it asks you if you are present, and otherwise fixes them. Code that
    they write and load runs with your rights; only their file tools are limited to the workspace.
    """
    from queenright.cli.coder.session import run_coder

    if not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {folder}; create it first", param_hint="folder")
    if not model:
        raise typer.BadParameter("pass a model, such as --model anthropic/claude-sonnet-4-5")
    raise typer.Exit(run_coder(folder, options, model=model))
