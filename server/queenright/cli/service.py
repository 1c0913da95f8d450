"""What commands that ask a running service have in common: options, the client, how answers are printed."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queenright.cli.completion_names import agents
from queenright.cli.options import Json, path
from queenright.cli.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from queenright.client.synchronous.client import Queenright

__all__ = ["Json"]

LOCAL = "http://127.0.0.1:8420"

Url = Annotated[str, typer.Option(envvar="QUEENRIGHT_URL", help="Where the service is.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        parser=path,
        metavar="FILE",
        # Not on the command line itself: there everybody on this machine can read it.
        help="File with the token to ask with; without, $QUEENRIGHT_TOKEN, or $QUEENRIGHT_TOKEN_FILE.",
    ),
]
By = Annotated[str, typer.Option(help="Who asks; it is kept in the audit trail. You, without.")]
Reason = Annotated[str, typer.Option(help="Why; it is kept in the audit trail.")]
Agent = Annotated[
    str, typer.Argument(autocompletion=agents, help="The worker, as `queenright list` shows it.")
]
Session = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="Which session; the one at work, without.")
]
Many = Annotated[int, typer.Option("--limit", min=1, max=1000, help="So many at most, the newest.")]

_CONTROL = dict.fromkeys(
    (*range(32), *range(127, 160), *range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)),
    " ",
)


def login() -> str:
    """Return who runs this: what the environment says, else the system."""
    with contextlib.suppress(KeyError):
        return os.environ.get("USER") or os.environ.get("LOGNAME") or pwd.getpwuid(os.getuid()).pw_name
    return "operator"


WHO = login()


def connect(url: str, token_file: Path | None) -> Queenright:
    """
    Return a client of the service; to be used as a context.

    Raises:
        UsageError: ``url`` is none, or the token cannot be read.
    """
    from queenright.client.errors import InvalidAddressError

    _httpx_without_its_command()
    from queenright.client.synchronous.client import Queenright

    try:
        return Queenright(url, token_file=token_file)
    except InvalidAddressError as error:
        raise UsageError(str(error)) from error


def _httpx_without_its_command() -> None:
    """Import httpx as if its own command line were not installed: that takes as long as all the rest."""
    if "httpx" not in sys.modules:
        sys.modules["httpx._main"] = None  # type: ignore[assignment]
        import httpx  # noqa: F401

        del sys.modules["httpx._main"]


def named(name: str, what: str = "name") -> str:
    """Return a name; an empty one is a script's unset variable, and misuse."""
    if not name.strip():
        raise typer.BadParameter(f"the {what} is empty")
    return name


def refuse_options(context: typer.Context) -> None:
    """
    Refuse options before a subcommand.

    They would be lost: what is done might be done at another service than the one that is named.
    """
    given = (context.get_parameter_source(name) for name in context.params)
    if any(source is not None and source.name == "COMMANDLINE" for source in given):
        raise typer.BadParameter(f"options go behind `{context.invoked_subcommand}`")


def values(answer: BaseModel) -> dict[str, Any]:
    """Return an answer as JSON values, as the service said it."""
    return answer.model_dump(mode="json", exclude_unset=True)


def tell(answer: BaseModel, words: str, *, as_json: bool) -> None:
    """Print what became of something: in words, or as JSON."""
    if as_json:
        typer.echo(json.dumps(values(answer), indent=2))
    else:
        typer.echo("\n".join(map(on_one_line, words.split("\n"))))


def tell_all(answers: Sequence[BaseModel], lines: Iterable[str], none: str, *, as_json: bool) -> None:
    """Print a list, a line each; or as JSON. ``none`` is said of an empty one."""
    if as_json:
        typer.echo(json.dumps([values(one) for one in answers], indent=2))
        return
    for line in list(lines) or [none]:
        typer.echo(on_one_line(line))


def on_one_line(text: str) -> str:
    """Return text that neither moves the cursor nor breaks the line, whoever wrote it."""
    return text.translate(_CONTROL).rstrip()


def say_brakes(service: Queenright) -> bool:
    """Say on stderr why less is done than is due, if it is; return whether acting is frozen."""
    acting = service.service.status().acting
    for brake in acting.brakes:
        typer.echo(on_one_line(brake), err=True)
    return acting.emergency_stop.on


def cut(text: str, width: int) -> str:
    """Return a text as a column of a list: filled up, or cut with an ellipsis, to ``width`` characters."""
    return (text if len(text) <= width else f"{text[: width - 1]}…").ljust(width)


def cut_front(text: str, width: int) -> str:
    """Return a text cut to ``width`` characters: of an id, the end tells it from others."""
    return text if len(text) <= width else f"…{text[len(text) - width + 1 :]}"


def short(text: str) -> str:
    """Return text as the end of a line."""
    line = " ".join(text.split())
    return line if len(line) <= 100 else f"{line[:99]}…"


def clock(moment: float) -> str:
    """Return seconds since the epoch as a local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
