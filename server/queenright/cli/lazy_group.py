"""A Typer group that lists its commands from a table and imports each one when it is called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import groupby
from typing import Any, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup

from queenright.cli.command_table import COMMANDS, CommandEntry

_UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])  # Typer does not export it

_SYNONYMS: Final = {
    "fleet": ("list",),
    "health": ("list",),
    "ps": ("list",),
    "status": ("list",),
    "workers": ("list",),
    "alerts": ("tickets",),
    "logs": ("events",),
    "start": ("up", "serve"),
    "kill": ("terminate",),
    "stop": ("terminate", "stop-acting"),
    "restart": ("recover",),
}
"""Names of similar commands in other programs that a search for similar spelling would not match."""


class _LazyCommands(Mapping[str, Any]):
    """Commands by name. Each is imported on first access."""

    def __init__(self, table: Mapping[str, CommandEntry]) -> None:
        self._table = table
        self._cache: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._cache:
            self._cache[name] = _load_command(self._table[name])
        return self._cache[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, name: object) -> bool:
        return name in self._table


class LazyGroup(TyperGroup):
    """The commands of ``command_table``."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = _LazyCommands(COMMANDS)  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the command names in the order of the table."""
        return list(COMMANDS)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one list per section."""
        width = max(len(name) for name in COMMANDS)
        for section, entries in groupby(COMMANDS.values(), key=lambda entry: entry.section):
            with formatter.section(section):
                formatter.write_dl([(e.name.ljust(width), e.help.rstrip(".")) for e in entries])

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the options of `queenright` itself."""
        with _rewrite_usage_errors():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Parse the rest of the command line, and run the command."""
        with _rewrite_usage_errors():
            return super().invoke(ctx)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete a command name or an option of `queenright` itself, without importing a command."""
        stubs: dict[str, Any] = {
            name: TyperCommand(name, help=entry.help) for name, entry in COMMANDS.items()
        }
        group = TyperGroup(name=self.name, commands=stubs, params=self.params)
        return group.shell_complete(typer.Context(group), incomplete)


@contextmanager
def _rewrite_usage_errors() -> Iterator[None]:
    """Replace pydantic's terms in usage errors; mask and shorten the values that the errors quote."""
    try:
        yield
    except _UsageError as error:
        from queenright.cli.errors import shorten_lines
        from queenright.instrumentation.redaction import redact

        if (errors := getattr(error.__cause__, "errors", None)) is not None:
            from queenright.instrumentation.validation_messages import format_fault, shorten_value

            [fault, *_] = errors()
            message = format_fault(fault)
            if fault["type"] != "value_error":  # our messages, and Typer's for a choice, quote the value
                message = f"{message}, not {shorten_value(fault['input'])}"
            error.message = message
        elif error.message.startswith("No such command"):
            error.message = _format_unknown_command(error)
        error.message = shorten_lines("\n".join(redact(line, 10_000) for line in error.message.split("\n")))
        raise


def _format_unknown_command(error: typer.BadParameter) -> str:
    """Return the message about an unknown command, with the options or commands that may be meant."""
    context: Any = error.ctx
    word = error.message.split("'")[1]
    if word in ("help", "version"):
        return f"No such command {word!r}. Use queenright --{word}."
    if isinstance(context.command, LazyGroup) and word in _SYNONYMS:
        return f"No such command {word!r}. Did you mean {' or '.join(map(repr, _SYNONYMS[word]))}?"
    if "Did you mean" in error.message or isinstance(context.command, LazyGroup):
        return error.message
    return f"{error.message} Commands: {', '.join(context.command.commands)}."


def _load_command(entry: CommandEntry) -> Any:
    """Import a command and return it as a click command."""
    target = getattr(import_module(entry.module), entry.attribute)
    parent = typer.Typer(rich_markup_mode=None, add_completion=False)
    if isinstance(target, typer.Typer):
        parent.add_typer(target, name=entry.name, help=entry.help)
    else:
        parent.command(entry.name, epilog=f"Example: queenright {target.example}")(target)
    command: Any = typer.main.get_group(parent).commands[entry.name]
    for subcommand in getattr(command, "commands", {}).values():
        command.epilog = command.epilog or subcommand.epilog
        # Click would cut the list's texts to 45 characters.
        subcommand.short_help = subcommand.short_help or _get_first_sentence(subcommand.help or "")
    return command


def _get_first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".")
