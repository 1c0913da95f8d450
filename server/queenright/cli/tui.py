"""`queenright tui`: the terminal interface."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import typer

from queenright.cli.asking import LOCAL, WHO, By, TokenFile, Url
from queenright.cli.misuse import Misuse

_FAULTS = 20


def tui(url: Url = LOCAL, token_file: TokenFile = None, by: By = WHO) -> None:
    """
    Watch the fleet in the terminal, act on workers, and talk with the queen and with agents.

    It asks a running service, here or far away, and needs a terminal of 80 by 24 or more. `?` lists its keys.
    """
    import sys

    from queenright.instrumentation.errors import QueenrightError

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Misuse(
            "This needs a terminal. `queenright list` and `queenright tickets` print into a pipe or a file."
        )
    try:
        from queenright.tui.app import QueenrightApp
    except ModuleNotFoundError as error:
        raise QueenrightError(
            f"The terminal interface needs {error.name}: pip install 'queenright[tui]'"
        ) from None
    from queenright.client import AsyncQueenright
    from queenright.tui.link import Link

    app = QueenrightApp(Link(AsyncQueenright(url, token_file=token_file), by=by))
    with _faults_afterwards():
        app.run()
    raise typer.Exit(app.return_code or 0)


@contextlib.contextmanager
def _faults_afterwards() -> Iterator[None]:
    """Print on stderr what went wrong meanwhile, once the terminal is free again; at most twenty of it."""
    said: list[str] = []
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if len(said) < _FAULTS:
                said.append(formatter.format(record))

    handler = Keep(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        for one in said:
            typer.echo(one, err=True)
