"""
The program `queenright`. Its commands are listed in ``command_table`` and imported when they are called.

Exit codes: 0 success, 1 failure or a negative answer, 2 misuse.
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
    epilog="Command help: queenright COMMAND --help. Exit codes: 0 success, 1 failure, 2 misuse.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain text halves the start-up time, and can be searched and copied.
    rich_markup_mode=None,
)


def _handle_completion(context: typer.Context, parameter: typer.CallbackParam, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from pathlib import Path

    from queenright.cli import completion

    if parameter.name == "show_completion":
        typer.echo(completion.get_script(None), nl=False)
    else:
        typer.echo(completion.install_script(None, Path.home()))
    raise typer.Exit


def _print_version(context: typer.Context, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from queenright.cli.version import print_version

    print_version()
    raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    install_completion: Annotated[
        bool,
        typer.Option(
            "--install-completion",
            callback=_handle_completion,
            is_eager=True,
            help="Install completion for $SHELL.",
        ),
    ] = False,
    show_completion: Annotated[
        bool,
        typer.Option(
            "--show-completion",
            callback=_handle_completion,
            is_eager=True,
            help="Print the completion script for $SHELL.",
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line. A `QueenrightError` becomes one line on stderr and exit code 1 or 2."""
    try:
        if (line := os.environ.get("_QUEENRIGHT_LINE")) is not None:
            from queenright.cli import completion

            completion.print_proposals(app, line)
            return
        app()
    except Exception as error:
        code = 1
        message: str | None
        if isinstance(error, ModuleNotFoundError):
            from queenright.cli.extras import explain_missing_extra

            message = explain_missing_extra(error.name)
        else:
            from queenright.cli.errors import UsageError, shorten_lines
            from queenright.instrumentation.errors import QueenrightError

            message = None
            if isinstance(error, QueenrightError):
                message = shorten_lines(str(error))
            elif isinstance(error, OSError) and error.filename is not None:
                message = shorten_lines(f"cannot open {error.filename}: {error.strerror}")
            code = 2 if isinstance(error, UsageError) else 1
        if message is None:
            raise
        typer.echo(f"queenright: {message}", err=True)
        raise SystemExit(code) from None


if __name__ == "__main__":
    main()
