"""What is typed in the command line: words for an agent, or a command that begins with a slash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from queenright.instrumentation.errors import QueenrightError

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "graphs": ("", "the graphs of the agent, and what each does"),
    "graph": ("<id>", "what is typed goes to this graph from now on"),
    "nodes": ("", "the active graph: what each node does, what comes next"),
    "data": ("", "what the session of the active graph knows"),
    "load": ("<path>", "load an agent; in a talk, a further graph for it"),
    "unload": ("<id>", "unload a graph of the agent, or an agent"),
    "worker": ("<name>", "open a worker, whether it is in the list or not"),
    "talk": ("<agent>", "talk with an agent that is loaded"),
    "help": ("", "this list"),
}
"""Each command: what it needs, and what it does."""


class InvalidCommandError(QueenrightError):
    """Raised when what is typed is no command; says what would be one."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command; ``argument`` is empty for one that needs none."""

    name: str
    argument: str


def parse(line: str) -> Command | None:
    """
    Return the command that a line is; None if it is words for an agent.

    ``//`` begins words that begin with a slash: see ``words_of``.

    Raises:
        InvalidCommandError: there is no such command, or what it needs is missing or too much.
    """
    if not line.startswith("/") or line.startswith("//"):
        return None
    name, _, argument = line[1:].strip().partition(" ")
    argument = argument.strip()
    if name not in COMMANDS:
        known = ", ".join(f"/{one}" for one in COMMANDS)
        raise InvalidCommandError(f"there is no command /{name}; there are {known}")
    needs, what = COMMANDS[name]
    if needs and not argument:
        raise InvalidCommandError(f"/{name} needs {needs}: {what}")
    if argument and not needs:
        raise InvalidCommandError(f"/{name} takes nothing after it, and got {argument!r}")
    return Command(name, argument)


def words_of(line: str) -> str:
    """Return the words for an agent that a line is."""
    return line[1:] if line.startswith("//") else line


def help_lines() -> list[str]:
    """Return all commands, a line each."""
    return [f"{f'/{name} {needs}':<16}{what}" for name, (needs, what) in COMMANDS.items()]
