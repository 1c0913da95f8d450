"""Every command of the command line, with its help."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from queenright.cli.app import app


def walk(command: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command and group below one, with the words that call it; of the program, without."""
    command = command or typer.main.get_command(app)
    for name, inner in getattr(command, "commands", {}).items():
        yield (*words, name), inner
        yield from walk(inner, (*words, name))


def runs(command: Any) -> bool:
    """Whether a command does something by itself, and is no mere group of others."""
    return not getattr(command, "commands", None) or bool(command.invoke_without_command)


def first_sentence(command: Any) -> str:
    """Return what a command's own help says first."""
    words = " ".join(str(command.help).split("\n\n")[0].split())
    return words.partition(". ")[0].rstrip(".") + "."


def example(command: Any) -> str:
    """Return the example that a command's help ends with."""
    return " ".join(str(command.epilog).split()).removeprefix("Example: ")
