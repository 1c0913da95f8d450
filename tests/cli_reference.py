"""
Every command with what it does, as in docs/cli.md. ``python -m tests.cli_reference`` updates that part of the
page.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from queenright.cli.app import app
from queenright.cli.command_table import COMMANDS

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
BEGIN, END = "<!-- commands: begin -->", "<!-- commands: end -->"


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


def reference() -> str:
    """Return the tables of commands in Markdown: each with the first sentence of its help."""
    lines = []
    for section, entries in groupby(COMMANDS.values(), key=lambda entry: entry.section):
        lines += [f"| {section} | |", "| --- | --- |"]
        for entry in entries:
            actions = [f"`{words[1]}`" for words, _ in walk() if words[0] == entry.name and len(words) > 1]
            called = " ".join([f"`{entry.name}`", ", ".join(actions)]).strip()
            lines.append(f"| {called} | {entry.help.rstrip('.')} |")
        lines.append("")
    return "\n".join(lines)


def written(page: str) -> str:
    """Return the page with the list as it must be."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), encoding="utf-8")
