"""A group of commands that imports each of them when it is called, and lists them without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import groupby
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from queenright.cli.command_table import COMMANDS, Entry


class _Loaded(Mapping[str, Any]):
    """The commands of the table by name; each is loaded when it is asked for, and once."""

    def __init__(self, table: Mapping[str, Entry]) -> None:
        self._table = table
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(self._table[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, name: object) -> bool:
        return name in self._table


class LazyGroup(TyperGroup):
    """The commands of the table, and nothing else."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # A mapping that loads; whoever asks for one command gets that one.
        self.commands = _Loaded(COMMANDS)  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, as the table has them."""
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a list a section, from the table."""
        width = max(len(name) for name in COMMANDS)
        for section, entries in groupby(COMMANDS.values(), key=lambda entry: entry.section):
            with formatter.section(section):
                formatter.write_dl([(e.name.ljust(width), e.help.rstrip(".")) for e in entries])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return what may be typed here: commands, by the table, and the options of `queenright` itself."""
        stubs: dict[str, Any] = {
            name: TyperCommand(name, help=entry.help) for name, entry in COMMANDS.items()
        }
        listed = TyperGroup(name=self.name, commands=stubs, params=self.params)
        return listed.shell_complete(typer.Context(listed), incomplete)


def _load(entry: Entry) -> Any:
    """Import a command, and return it as the parser has it."""
    found = getattr(import_module(entry.module), entry.attribute)
    one = typer.Typer(rich_markup_mode=None, add_completion=False)
    epilog = f"Example: queenright {entry.example}"
    if isinstance(found, typer.Typer):
        one.add_typer(found, name=entry.name, epilog=epilog)
    else:
        one.command(entry.name, epilog=epilog)(found)
    return typer.main.get_group(one).commands[entry.name]
