"""
`queenright`: the program. Its commands are in the table (``table.py``), and loaded when they are called.

Exit codes: 0 it went well, 1 the answer is no (or it failed, or was paused), 2 the command was misused.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from queenright.cli.lazy_group import LazyGroup

app = typer.Typer(
    name="queenright",
    cls=LazyGroup,
    help="Health monitoring for fleets of AI agents.",
    epilog="Help of one: queenright COMMAND --help. Exit codes: 0 well, 1 no or failed, 2 misused.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain text: half the time to start, and it can be searched and copied.
    rich_markup_mode=None,
)


def _completion(context: typer.Context, parameter: typer.CallbackParam, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from pathlib import Path

    from queenright.cli import completion

    if parameter.name == "show_completion":
        typer.echo(completion.script(None), nl=False)
    else:
        typer.echo(completion.install(None, Path.home()))
    raise typer.Exit


@app.callback()
def _program(
    install_completion: Annotated[
        bool,
        typer.Option(
            "--install-completion", callback=_completion, is_eager=True, help="Complete words in $SHELL."
        ),
    ] = False,
    show_completion: Annotated[
        bool,
        typer.Option(
            "--show-completion", callback=_completion, is_eager=True, help="Print the script for $SHELL."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; errors of ours are one message on stderr and exit code 1, or 2."""
    try:
        if (line := os.environ.get("_QUEENRIGHT_LINE")) is not None:
            from queenright.cli import completion

            completion.answer(line)
            return
        app()
    except Exception as error:
        from queenright.instrumentation.errors import QueenrightError

        if not isinstance(error, QueenrightError):
            raise
        from queenright.cli.errors import UsageError

        typer.echo(f"queenright: {error}", err=True)
        raise SystemExit(2 if isinstance(error, UsageError) else 1) from None


if __name__ == "__main__":
    main()
