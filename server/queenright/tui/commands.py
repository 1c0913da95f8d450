"""The input line: messages, and commands that start with a slash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queenright.instrumentation.errors import QueenrightError

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "graphs": ("", "list the graphs of the agent, with their activity"),
    "graph": ("<id>", "send messages to this graph"),
    "nodes": ("", "show the nodes of the active graph, and their edges"),
    "data": ("", "show the session memory of the active graph"),
    "load": ("<path>", "load an agent; in a conversation, add a graph to it"),
    "unload": ("<id>", "unload a graph of the agent, or an agent"),
    "filter": ("[words]", "list workers by health, activity or text"),
    "worker": ("<name>", "open a worker, even if it is not in the list"),
    "talk": ("<agent>", "chat with a loaded agent"),
    "help": ("", "show this list"),
}
"""Argument and description of each command."""


class InvalidCommandError(QueenrightError):
    """Raised for an unknown command, or a wrong argument."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command; ``argument`` is empty if it takes none."""

    name: str
    argument: str


def parse_command(line: str) -> Command | None:
    """
    Return the command in a line; None if the line is a message.

    A message that starts with a slash is written with two: see ``get_message_text``.

    Raises:
        InvalidCommandError: The command is unknown, or its argument is missing or unexpected.
    """
    if not line.startswith("/") or line.startswith("//"):
        return None
    name, _, argument = line[1:].strip().partition(" ")
    argument = argument.strip()
    if name not in COMMANDS:
        commands = ", ".join(f"/{command}" for command in COMMANDS)
        raise InvalidCommandError(f"unknown command /{name}; commands: {commands}")
    parameter, description = COMMANDS[name]
    if parameter.startswith("<") and not argument:
        raise InvalidCommandError(f"/{name} needs {parameter}: {description}")
    if argument and not parameter:
        raise InvalidCommandError(f"/{name} takes no argument, got {argument!r}")
    return Command(name, argument)


def get_message_text(line: str) -> str:
    """Return the message in a line."""
    return line[1:] if line.startswith("//") else line


def make_help_lines() -> list[str]:
    """Return all commands, one per line."""
    return [
        f"{f'/{name} {parameter}':<16}{description}" for name, (parameter, description) in COMMANDS.items()
    ]
