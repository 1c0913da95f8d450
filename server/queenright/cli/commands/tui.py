"""`queenright tui`: the terminal interface."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import typer

from queenright.cli.terminal.run_options import RunOptions
from queenright.cli.service import LOCAL, WHO, By, TokenFile, Url, login
from queenright.cli.errors import UsageError

_FAULTS = 20


def tui(url: Url = LOCAL, token_file: TokenFile = None, by: By = WHO) -> None:
    """
    Watch the fleet in the terminal, act on workers, and talk with the queen and with agents.

    It asks a running service, here or far away, and needs a terminal of 80 by 24 or more. `?` lists its keys.
    """
    _check_terminal("`queenright list` and `queenright tickets` print into a pipe or a file.")
    from queenright.client import AsyncQueenright
    from queenright.tui.app import QueenrightApp
    from queenright.tui.link import Link

    app = QueenrightApp(Link(AsyncQueenright(url, token_file=token_file), by=by))
    with _faults_afterwards():
        app.run()
    raise typer.Exit(app.return_code or 0)


def run_in_interface(options: RunOptions) -> int:
    """
    Run one agent in the terminal interface; return the exit code.

    Raises:
        UsageError: There is no terminal, or the command line makes no sense.
        QueenrightError: The interface is not installed, or the agent cannot be run.
    """
    options.check()
    for given, option in ((options.as_json, "--json"), (options.approve_tools, "--approve-tools")):
        if given:
            raise UsageError(f"--tui and {option} do not go together; leave one out.")
    _check_terminal("Leave --tui out to run it in a pipe.")
    from queenright.cli.terminal.run_in_tui import run_tui

    with _faults_afterwards():
        return run_tui(options, by=login())


def _check_terminal(otherwise: str) -> None:
    import sys
    from importlib.util import find_spec

    from queenright.instrumentation.errors import QueenrightError

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"This needs a terminal. {otherwise}")
    if missing := [name for name in ("textual", "rich") if find_spec(name) is None]:
        raise QueenrightError(f"The terminal interface needs {missing[0]}: pip install 'queenright[tui]'")


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
