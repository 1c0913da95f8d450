"""
`queenright`: the program. Its commands are in the table (``table.py``), and loaded when they are called.

Exit codes: 0 it went well, 1 the answer is no (or it failed, or was paused), 2 the command was misused.
"""

from __future__ import annotations

import typer

from queenright.cli.lazy import LazyGroup

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


@app.callback()
def _program() -> None:
    pass


def main() -> None:
    """Run the command line; errors of ours are one message on stderr and exit code 1."""
    try:
        app()
    except Exception as error:
        from queenright.instrumentation.errors import QueenrightError

        if not isinstance(error, QueenrightError):
            raise
        typer.echo(f"queenright: {error}", err=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
