"""Every command of the command line, with its help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from queenright.cli.app import app


def walk(command: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command and group below ``command`` (default: the program), with the words that run it."""
    command = command or typer.main.get_command(app)
    for name, inner in getattr(command, "commands", {}).items():
        yield (*words, name), inner
        yield from walk(inner, (*words, name))


def is_runnable(command: Any) -> bool:
    """Return whether a command can run by itself, rather than only group others."""
    return not getattr(command, "commands", None) or bool(command.invoke_without_command)


def first_sentence(command: Any) -> str:
    """Return the first sentence of a command's help."""
    paragraph = " ".join(str(command.help).split("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".") + "."


def example(command: Any) -> str:
    """Return the example from a command's epilog."""
    return " ".join(str(command.epilog).split()).removeprefix("Example: ")
