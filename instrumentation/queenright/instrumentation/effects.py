"""
Infer the effect of a tool call from its name and arguments.

Loop detectors need it: a repeated read after a change may return something new, waiting is not a loop,
and submitting a result again and again is not work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from queenright.instrumentation.effect import Effect
from queenright.instrumentation.shell_effects import (
    COMMAND_HEAD,
    MIN_WAIT_SECONDS,
    infer_command_effect,
    sleep_seconds,
)
from queenright.instrumentation.word_tables import read_words

_WORD_SETS: Final = read_words("tools")

_READS: Final = _WORD_SETS["reads"]
_SEARCHES: Final = _WORD_SETS["searches"]
_STATES: Final = _WORD_SETS["states"]
_RUNNING: Final = _WORD_SETS["running"]

_EDITS: Final = _WORD_SETS["edits"]
_CHANGES: Final = _EDITS | _WORD_SETS["more_changes"]
_WRITES_CONTENT: Final = _WORD_SETS["writes_content"]
_CONTENT: Final = _WORD_SETS["content"]

_NOTES: Final = _WORD_SETS["notes"]

_WAITS: Final = _WORD_SETS["waits"]
_WAITING: Final = _WORD_SETS["waiting"]
_WAIT_KEYS: Final = re.compile(r"s|t|n|.*(?:sec|time|dura|delay|wait|ms|milli|min).*", re.IGNORECASE)
_SUBMITS: Final = _WORD_SETS["submits"]
_SPEAKS: Final = _WORD_SETS["speaks"]
_CHECKS: Final = _WORD_SETS["checks"]
_CODE: Final = _WORD_SETS["code"]

_EXECUTES: Final = _WORD_SETS["executes"]
_ASKS: Final = _WORD_SETS["asks"]
_QUESTION_TOOL_NAME: Final = re.compile(
    "|".join(name.replace("_", "[^a-z0-9]*") for name in sorted(_ASKS)), re.IGNORECASE
)
_QUESTIONS: Final = ("question", "questions", "prompt", "message", "text", "query", "plan")
_SHELLS: Final = _WORD_SETS["shells"]
_EDITORS: Final = _WORD_SETS["editors"]
_STDIN: Final = _WORD_SETS["stdin"]

_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_ACTION: Final = re.compile(r"[A-Za-z][\w-]{1,39}")
_SEPARATORS: Final = re.compile(r"__|[.:/]")
_PLAIN: Final = re.compile(r"[^a-z0-9]+")


class _ToolTraits(NamedTuple):
    """What can be inferred from a tool's name."""

    effect: Effect | None
    command_keys: tuple[str, ...] = ()
    """Argument names that may hold the command of a shell."""
    is_editor: bool = False
    is_stdin: bool = False
    is_question_tool: bool = False
    is_messaging_tool: bool = False
    is_note: bool = False


@lru_cache(4096)
def _inspect_tool(name: str) -> _ToolTraits:
    # "mcp__github__create_issue", "functions.read_file": the tool's own name is the last part.
    verb = _SEPARATORS.split(name)[-1]
    plain_name = _PLAIN.sub("_", verb.lower()).strip("_")
    words = [word.lower() for word in _WORDS.findall(verb)]
    if plain_name in _ASKS:
        return _ToolTraits(None, is_question_tool=True)
    if plain_name in _SUBMITS or "_".join(words) in _SUBMITS:
        return _ToolTraits(Effect.SUBMITS)
    if plain_name in _WAITS:
        return _ToolTraits(Effect.WAITS)
    if plain_name in _SHELLS:
        return _ToolTraits(None, command_keys=("command", "cmd", "script", "input"))
    if plain_name in _EDITORS or plain_name in _STDIN:
        return _ToolTraits(None, is_editor=plain_name in _EDITORS, is_stdin=plain_name in _STDIN)
    if "replace" in words:
        return _ToolTraits(Effect.EDITS)
    if not _NOTES.isdisjoint(words):
        return _ToolTraits(None, is_note=True)
    return _ToolTraits(_infer_from_words(words), is_messaging_tool=not _SPEAKS.isdisjoint(words[:1]))


def _infer_from_words(words: list[str]) -> Effect | None:
    if words and words[0] in _EXECUTES and not _CODE.isdisjoint(words):
        return Effect.RUNS
    for word in words[:2]:
        if word in _CHANGES:
            is_edit = word in _WRITES_CONTENT or (word in _EDITS and not _CONTENT.isdisjoint(words))
            return Effect.EDITS if is_edit else Effect.CHANGES
        if word in _WAITING:
            return Effect.WAITS
        if word in _SEARCHES:
            return Effect.SEARCHES
        if word in _READS:
            return Effect.READS if (_STATES | _RUNNING).isdisjoint(words) else Effect.POLLS
    if "git" not in words and not _STATES.isdisjoint(words):
        return Effect.POLLS
    return None if _CHECKS.isdisjoint(words) else Effect.CHECKS


def infer_tool_effect(name: str) -> Effect | None:
    """Return the effect of a tool from its name alone; None if unknown."""
    return _inspect_tool(name).effect


def is_question_tool(name: str) -> bool:
    """Return whether a tool asks a person and waits for the answer."""
    return _inspect_tool(name).is_question_tool


def may_name_question_tool(text: str) -> bool:
    """Return whether a text may name a tool that asks a person; False is certain."""
    return _QUESTION_TOOL_NAME.search(text) is not None


def extract_question(tool: str, arguments: object) -> str:
    """Return the question of a call to a person, otherwise the tool's name; "" if the call asks no one."""
    if not is_question_tool(tool):
        return ""
    arguments = _parse_arguments(arguments)
    if isinstance(arguments, Mapping) and isinstance(questions := arguments.get("questions"), list):
        arguments = {"text": " ".join(_read_text(question, _QUESTIONS) for question in questions)}
    return _read_text(arguments, _QUESTIONS).strip() or tool


def is_messaging_tool(name: str) -> bool:
    """Return whether a tool sends a message that may be answered."""
    return _inspect_tool(name).is_messaging_tool


def is_note(name: str) -> bool:
    """Return whether a tool stores an agent's own notes."""
    return _inspect_tool(name).is_note


def is_shell(name: str) -> bool:
    """Return whether a tool runs shell commands."""
    return bool(_inspect_tool(name).command_keys)


def infer_effect(tool: str, arguments: object = None) -> Effect | None:
    """
    Return the effect of a tool call; None if unknown.

    Args:
        tool: The tool's name.
        arguments: The arguments: text, JSON or an object. For a shell, the command is analysed.
    """
    traits = _inspect_tool(tool)
    if traits.command_keys:
        command = _read_text(arguments, traits.command_keys)
        return infer_command_effect(command[:COMMAND_HEAD]) if command else None
    if traits.is_editor:
        command = _read_text(arguments, ("command",))
        if command == "view":
            return Effect.READS
        return Effect.CHANGES if command.startswith("undo") else Effect.EDITS
    if traits.is_stdin:
        # Empty input only polls for more output.
        return None if _read_text(arguments, ("chars", "input", "text", "data")).strip() else Effect.WAITS
    if traits.effect is Effect.WAITS and 0 <= _read_wait_seconds(arguments) < MIN_WAIT_SECONDS:
        return Effect.READS
    if traits.effect is None and not (traits.is_note or traits.is_question_tool):
        return _infer_action_effect(arguments)
    return traits.effect


def _infer_action_effect(arguments: object) -> Effect | None:
    """Return the effect of the argument ``action``, which ``computer`` has; None if there is none."""
    if isinstance(arguments, str) and arguments[:1] != "{":
        return None
    action = _read_text(arguments, ("action",))
    return _inspect_tool(action).effect if _ACTION.fullmatch(action) else None


def wait_seconds(tool: str, arguments: object) -> float:
    """Return the minimum seconds that a call waits, by its arguments; 0 if unknown."""
    traits = _inspect_tool(tool)
    if traits.command_keys:
        return sleep_seconds(_read_text(arguments, traits.command_keys)[:COMMAND_HEAD])
    return max(0.0, _read_wait_seconds(arguments)) if traits.effect is Effect.WAITS else 0.0


def get_effect_facts(tool: str, arguments: object) -> dict[str, str]:
    """Return the field ``effect`` for a call's event, if the tool's name alone gives another effect."""
    effect = infer_effect(tool, arguments)
    return {} if effect is None or effect is infer_tool_effect(tool) else {"effect": effect.value}


def _read_text(arguments: object, keys: tuple[str, ...]) -> str:
    """Return the first of the arguments ``keys`` as text; plain text is returned unchanged."""
    arguments = _parse_arguments(arguments)
    if isinstance(arguments, str):
        return arguments
    if not isinstance(arguments, Mapping):
        return ""
    value: Any = next((arguments[key] for key in keys if arguments.get(key)), "")
    if isinstance(value, list):
        # ["bash", "-lc", "..."]: the last item is the command.
        value = value[-1] if len(value) > 2 and str(value[1]).startswith("-") else " ".join(map(str, value))
    return value if isinstance(value, str) else ""


def _parse_arguments(arguments: object) -> object:
    """Return JSON arguments as an object, or None if they are invalid; return other arguments unchanged."""
    if not isinstance(arguments, str) or arguments[:1] != "{":
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return None


def _read_wait_seconds(arguments: object) -> float:
    """Return the seconds that a wait's arguments state; -1 if they state none."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return -1.0
    if not isinstance(arguments, Mapping):
        return -1.0
    lengths = [
        min(value, 1e9) * (0.001 if "ms" in key or "milli" in key else 60.0 if "min" in key else 1.0)
        for key, value in ((str(key).lower(), value) for key, value in arguments.items())
        if isinstance(value, int | float) and not isinstance(value, bool) and _WAIT_KEYS.fullmatch(key)
    ]
    return max(lengths, default=-1.0)
