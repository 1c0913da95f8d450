"""`queenright tui`: the terminal interface."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import typer

from queenright.cli.errors import UsageError
from queenright.cli.options import CURRENT_USER, By, TokenFile, Url, get_current_user
from queenright.cli.service import example
from queenright.client.address import LOCAL_URL

if TYPE_CHECKING:
    from queenright.cli.terminal.run_options import RunOptions

_MAX_RECORDS: Final = 20


@example("tui --url http://127.0.0.1:8420")
def tui(url: Url = LOCAL_URL, token_file: TokenFile = None, by: By = CURRENT_USER) -> None:
    """
    Watch the fleet in the terminal, act on workers, and chat with the queen and with agents.

    Connects to a running service, local or remote. Needs a terminal of 80 by 24 or more. `?` shows the keys.
    """
    _check_terminal("`queenright list` and `queenright tickets` print to a pipe or a file.")
    from queenright.client import AsyncQueenright
    from queenright.tui.app import QueenrightApp
    from queenright.tui.gateway import ServiceGateway

    app = QueenrightApp(ServiceGateway(AsyncQueenright(url, token_file=token_file), by=by))
    with _deferred_warnings():
        app.run()
    raise typer.Exit(app.return_code or 0)


def run_in_tui(options: RunOptions) -> int:
    """
    Run one agent in the terminal interface; return the exit code.

    Raises:
        UsageError: There is no terminal, or the options contradict each other.
        QueenrightError: The interface is not installed, or the agent cannot be run.
    """
    options.check()
    for is_set, option in ((options.as_json, "--json"), (options.approve_tools, "--approve-tools")):
        if is_set:
            raise UsageError(f"--tui and {option} exclude each other; leave one out.")
    _check_terminal("Leave --tui out to run the agent in a pipe.")
    from queenright.cli.terminal.run_in_tui import run_in_tui as run

    with _deferred_warnings():
        return run(options, by=get_current_user())


def _check_terminal(alternative: str) -> None:
    from importlib.util import find_spec

    from queenright.cli.extras import explain_missing_extra
    from queenright.instrumentation.errors import QueenrightError

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(f"This needs a terminal. {alternative}")
    if any(find_spec(name) is None for name in ("textual", "rich")):
        raise QueenrightError(str(explain_missing_extra("textual")))


@contextlib.contextmanager
def _deferred_warnings() -> Iterator[None]:
    """Collect up to twenty log warnings while the interface owns the terminal, and print them afterwards."""
    records: list[str] = []
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if len(records) < _MAX_RECORDS:
                records.append(formatter.format(record))

    handler = Collector(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        for record in records:
            typer.echo(record, err=True)
