"""
Infer the effect of a tool call from its name and arguments.

Loop detectors need it: a repeated read after a change may return something new, waiting is not a loop,
and submitting a result again and again is not work.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple


class Effect(StrEnum):
    """The effect of a tool call."""

    READS = "reads"
    """Reads without side effects."""
    CHANGES = "changes"
    """Changes state that later calls may see."""
    WAITS = "waits"
    """Waits, or polls for completion."""
    SUBMITS = "submits"
    """Submits a result, or reports that the task is done."""


def _words_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READS: Final = _words_in(
    """
    read view get list ls search grep rg glob find fetch query select show describe lookup cat head
    tail open browse retrieve inspect check count stat tree diff locate extract analyze analyse
    recall
    """
)
_EDITS: Final = _words_in(
    """
    edit multiedit write create update insert replace patch apply append add set put rewrite save
    modify str_replace
    """
)
_CHANGES: Final = _EDITS | _words_in(
    """
    delete remove clear reset post send reply comment publish notify email move rename copy commit
    push merge deploy book cancel close approve reject assign order pay charge refund transfer
    install uninstall upload undo revert restore click type fill press select_option drag navigate
    goto
    """
)
_NOTES: Final = _words_in(
    """
    todo todos plan memory think thought
    """
)
"""Tools with which an agent takes notes for itself; they affect no other call."""
_WAITS: Final = _words_in(
    """
    sleep wait poll bashoutput taskoutput await_shell wait_for wait_agent get_task_status
    task_status check_status read_terminal_output
    """
)
_SUBMITS: Final = _words_in(
    """
    finish finished submit done complete completed task_done task_complete task_completed
    finish_task complete_task submit_answer submit_result submit_solution submit_task submit_review
    final_answer finalanswer give_final_answer attempt_completion mark_done mark_complete
    report_done goals_accomplished report_infeasible end_task
    """
)
_ASKS: Final = _words_in(
    """
    askuserquestion ask_user ask_user_question ask_human ask_followup_question request_user_input exitplanmode
    exit_plan_mode get_user_input human_input send_msg_to_user
    """
)
_SHELLS: Final = _words_in(
    """
    bash shell sh terminal execute_bash exec_command shell_command run_shell_command local_shell
    run_command run_terminal_cmd run_in_terminal execute_command unified_exec container_exec
    powershell cmd
    """
)
_EDITORS: Final = _words_in(
    """
    str_replace_editor str_replace_based_edit_tool text_editor file_editor
    """
)
_STDIN: Final = _words_in(
    """
    write_stdin write_to_terminal send_input input_command
    """
)

_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SEPARATORS: Final = re.compile(r"__|[.:/]")
_PLAIN: Final = re.compile(r"[^a-z0-9]+")

_COMMAND_HEAD: Final = 2_000
"""Characters of a command that are analysed."""
_QUOTED: Final = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"")
_SPECIAL: Final = re.compile(r"[;|&<>\n=]")
_REDIRECT: Final = re.compile(r"(?<![0-9&<=-])[12]?>{1,2}(?!\s*(?:/dev/null|&))")
_PARTS: Final = re.compile(r"&&|\|\||[;|\n]")
_PREFIXES: Final = _words_in(
    """
    sudo time env command nohup stdbuf then do else if while
    """
)
_SHELL_READS: Final = _words_in(
    """
    ls cat grep egrep fgrep rg ag find head tail wc pwd cd tree file stat du df ps which whereis
    type echo printf awk sort uniq cut tr nl less more diff cmp md5sum sha1sum sha256sum strings xxd
    od hexdump readlink basename dirname realpath env printenv id whoami date uname hostname test [
    true false done fi git-read jq yq column xargs id pgrep lsof netstat ss nproc free uptime
    history man help
    """
)
_SHELL_CHANGES: Final = _words_in(
    """
    mv cp rm mkdir rmdir touch tee patch chmod chown ln dd truncate install apply_patch kill pkill
    unzip tar gunzip gzip rsync scp
    """
)
_GIT_READS: Final = _words_in(
    """
    status log diff show blame grep ls-files ls-tree branch remote rev-parse describe cat-file
    config
    """
)
_INSTALLERS: Final = _words_in(
    """
    pip pip3 npm yarn pnpm apt apt-get brew cargo gem conda uv poetry go
    """
)
_INSTALLS: Final = _words_in(
    """
    install add remove uninstall update upgrade get sync i
    """
)


class _Tool(NamedTuple):
    """What can be inferred from a tool's name."""

    effect: Effect | None
    is_edit: bool
    command_in: tuple[str, ...] = ()
    """Argument names that may hold the command of a shell."""
    is_editor: bool = False
    is_stdin: bool = False
    asks_user: bool = False


@lru_cache(4096)
def _tool(name: str) -> _Tool:
    # "mcp__github__create_issue", "functions.read_file": the tool's own name is the last part.
    own = _SEPARATORS.split(name)[-1]
    plain = _PLAIN.sub("_", own.lower()).strip("_")
    if plain in _ASKS:
        return _Tool(None, is_edit=False, asks_user=True)
    if plain in _SUBMITS:
        return _Tool(Effect.SUBMITS, is_edit=False)
    if plain in _WAITS:
        return _Tool(Effect.WAITS, is_edit=False)
    if plain in _SHELLS:
        return _Tool(None, is_edit=False, command_in=("command", "cmd", "script", "input"))
    if plain in _EDITORS or plain in _STDIN:
        return _Tool(None, is_edit=False, is_editor=plain in _EDITORS, is_stdin=plain in _STDIN)
    words = [word.lower() for word in _WORDS.findall(own)]
    if "replace" in words:
        return _Tool(Effect.CHANGES, is_edit=True)
    if _NOTES.isdisjoint(words):
        for word in words[:2]:
            if word in _CHANGES:
                return _Tool(Effect.CHANGES, is_edit=word in _EDITS)
            if word in _READS:
                return _Tool(Effect.READS, is_edit=False)
    return _Tool(None, is_edit=False)


def effect_of_tool(name: str) -> Effect | None:
    """Return the effect of a tool from its name alone; None if unknown."""
    return _tool(name).effect


def is_edit(name: str) -> bool:
    """Return whether a tool writes its arguments, so that a repeated call has no new effect."""
    return _tool(name).is_edit


def asks_user(name: str) -> bool:
    """Return whether a tool asks a person and waits for the answer."""
    return _tool(name).asks_user


def is_shell(name: str) -> bool:
    """Return whether a tool runs shell commands."""
    return bool(_tool(name).command_in)


def effect_of(tool: str, arguments: object = None) -> Effect | None:
    """
    Return the effect of a tool call; None if unknown.

    Args:
        tool: The tool's name.
        arguments: The arguments: text, JSON or an object. For a shell, the command is analysed.
    """
    traits = _tool(tool)
    if traits.command_in:
        command = _text_in(arguments, traits.command_in)
        return effect_of_command(command[:_COMMAND_HEAD]) if command else None
    if traits.is_editor:
        return Effect.READS if _text_in(arguments, ("command",)) == "view" else Effect.CHANGES
    if traits.is_stdin:
        # Empty input only polls for more output.
        return None if _text_in(arguments, ("chars", "input", "text", "data")).strip() else Effect.WAITS
    return traits.effect


def effect_facts(tool: str, arguments: object) -> dict[str, str]:
    """Return the field ``effect`` for a call's event, if it differs from the effect of the tool's name."""
    effect = effect_of(tool, arguments)
    return {} if effect is None or effect is effect_of_tool(tool) else {"effect": effect.value}


def _text_in(arguments: object, keys: tuple[str, ...]) -> str:
    """Return the first of the arguments ``keys`` as text; plain text is returned as it is."""
    if isinstance(arguments, str):
        if arguments[:1] != "{":
            return arguments
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return ""
    if not isinstance(arguments, Mapping):
        return ""
    value: Any = next((arguments[key] for key in keys if arguments.get(key)), "")
    if isinstance(value, list):
        # ["bash", "-lc", "..."]: the last item is the command.
        value = value[-1] if len(value) > 2 and str(value[1]).startswith("-") else " ".join(map(str, value))
    return value if isinstance(value, str) else ""


@lru_cache(1024)
def effect_of_command(command: str) -> Effect | None:
    """
    Return the effect of a shell command.

    It reads if all of its parts read, waits if it also sleeps, and changes if any part changes something.
    """
    if _SPECIAL.search(command) is None:
        words = command.split()
        return _effect_of_words(words) if words and words[0] not in _PREFIXES else None
    if "<<" in command:
        command = command.partition("\n")[0]
    bare = _QUOTED.sub("''", command) if "'" in command or '"' in command else command
    if _REDIRECT.search(bare):
        return Effect.CHANGES
    effect: Effect | None = Effect.READS
    waits = False
    for part in _PARTS.split(bare):
        words = part.split()
        while words and (words[0] in _PREFIXES or ("=" in words[0] and not words[0].startswith("="))):
            del words[0]
        if not words:
            continue
        if words[0] == "timeout" and len(words) > 2:
            del words[:2]
        one = _effect_of_words(words)
        if one is Effect.CHANGES:
            return Effect.CHANGES
        if one is Effect.WAITS:
            waits = True
        elif one is None:
            effect = None
    return Effect.WAITS if waits and effect is Effect.READS else effect


def _effect_of_words(words: list[str]) -> Effect | None:
    name = words[0].rsplit("/", 1)[-1]
    second = words[1] if len(words) > 1 else ""
    if name in ("sleep", "wait"):
        return Effect.WAITS
    if name == "sed":
        return (
            Effect.CHANGES if any(word.startswith(("-i", "--in-place")) for word in words) else Effect.READS
        )
    if name == "find" and any(word in ("-delete", "-exec") for word in words):
        return None
    if name in _SHELL_READS:
        return Effect.READS
    if name in _SHELL_CHANGES:
        return Effect.CHANGES
    if name == "git":
        plain = next((word for word in words[1:] if not word.startswith("-")), "")
        return Effect.READS if plain in _GIT_READS else Effect.CHANGES if plain else None
    if name in _INSTALLERS and second in _INSTALLS:
        return Effect.CHANGES
    return None
