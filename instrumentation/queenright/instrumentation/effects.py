"""
Infer the effect of a tool call from its name and arguments.

Loop detectors need it: a repeated read after a change may return something new, waiting is not a loop,
and submitting a result again and again is not work.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, NamedTuple


class Effect(StrEnum):
    """The effect of a tool call."""

    READS = "reads"
    """Reads without side effects."""
    SEARCHES = "searches"
    """Reads, and may find nothing: that is an answer, not a failure."""
    POLLS = "polls"
    """Reads the state of something that changes by itself; repeated after a pause it is not a repeat."""
    CHANGES = "changes"
    """Changes state that later calls may see."""
    EDITS = "edits"
    """Writes its arguments, so that a repeated call has no new effect."""
    WAITS = "waits"
    """Waits, or polls for completion."""
    RUNS = "runs"
    """Runs a program or a script, which may change something."""
    SUBMITS = "submits"
    """Submits a result, or reports that the task is done."""


READING: Final = frozenset({Effect.READS, Effect.SEARCHES, Effect.POLLS})
CHANGING: Final = frozenset({Effect.CHANGES, Effect.EDITS})


def _words_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


_READS: Final = _words_in(
    """
    read view get list ls search grep rg glob find fetch query select show describe lookup cat head
    tail open browse retrieve inspect check count stat tree diff locate extract analyze analyse
    recall
    """
)
_SEARCHES: Final = _words_in(
    """
    search grep rg glob find locate
    """
)
_STATES: Final = _words_in(
    """
    status state progress
    """
)
_RUNNING: Final = _words_in(
    """
    job jobs run runs build builds pipeline pipelines workflow workflows deployment deployments task
    tasks queue logs
    """
)
"""What is read of these while it goes on is a state."""
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
_WRITES_CONTENT: Final = _words_in(
    """
    edit multiedit write insert replace patch append apply rewrite modify str_replace
    """
)
_CONTENT: Final = _words_in(
    """
    file files text code content contents line lines notebook document cell
    """
)
"""What is created or updated by content that the call gives, so that the same call writes the same."""
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
_WAITING: Final = _words_in(
    """
    sleep wait await poll
    """
)
_SHORTEST_WAIT: Final = 5.0
"""Seconds. A shorter sleep lets something settle, and nobody waits by it."""
_WAIT_KEYS: Final = re.compile(r"s|t|n|.*(?:sec|time|dura|delay|wait|ms|milli|min).*", re.IGNORECASE)
_SUBMITS: Final = _words_in(
    """
    finish finished submit done complete completed task_done task_complete task_completed
    finish_task complete_task submit_answer submit_result submit_solution submit_task submit_review
    final_answer finalanswer give_final_answer attempt_completion mark_done mark_complete
    report_done goals_accomplished report_infeasible end_task hand_in conclude report_result
    report_completion signal_completion deliver_report deliver_result final
    """
)
_SPEAKS: Final = _words_in(
    """
    respond say tell answer announce message
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
_SHELL_SEARCHES: Final = _words_in(
    """
    grep egrep fgrep rg ag find locate
    """
)
_SHELL_POLLS: Final = _words_in(
    """
    ps pgrep jobs squeue nvidia-smi uptime free netstat ss lsof
    """
)
_COUNTS: Final = re.compile(r"-[a-zA-Z]*[cqL]\w*|--(?:count|quiet|silent|files-without-match)")
"""Options with which nothing found is what was asked for."""
_LOOKS_AT_STATES: Final = _words_in("gh glab kubectl docker systemctl tail")
_POLLED: Final = re.compile(
    r"gh (?:run|pr checks|workflow)\b|glab ci\b|kubectl (?:get|describe|rollout status|logs)\b"
    r"|docker (?:ps|logs|inspect)\b|systemctl (?:status|is-active)\b|tail\b.*(?:log|\.out|\.err)\b"
)
_SHELL_CHANGES: Final = _words_in(
    """
    mv cp rm mkdir rmdir touch chmod chown ln dd truncate install kill pkill unzip tar gunzip gzip
    rsync scp
    """
)
_RUNNERS: Final = re.compile(
    r"(?:python|pypy|ruby|perl|php|lua|node|deno|bun|java|julia|Rscript)[\d.]*|(?:ba|da|z|fi)?sh|source|\.|exec|eval"
    r"|uv|poetry|pipx|black|isort|autopep8|ruff|gofmt|rustfmt|prettier|eslint|clang-format|make|npm|npx|pnpm|yarn|cargo|go|gradle|mvn|docker|kubectl|terraform|ansible\S*|sqlite3|psql|mysql|curl|wget"
)
"""Commands that run a script or a program of somebody's, or ask another to change something."""
_SHELL_EDITS: Final = _words_in(
    """
    tee patch apply_patch
    """
)
_WRITES: Final = _words_in(
    """
    echo printf cat tee
    """
)
"""What these write into a file is in the command."""
_HERE_DOCUMENT: Final = re.compile(
    r"<<-?\s*(['\"]?)(\w+)\1([^\n]*)\n(?:.*?\n)??\s*\2[ \t]*(?=\n|\Z)", re.DOTALL
)
_LOOPS: Final = re.compile(r"\b(?:for|while|until)\b")
_LENGTH: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([smhd]?)")
_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
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
    command_in: tuple[str, ...] = ()
    """Argument names that may hold the command of a shell."""
    is_editor: bool = False
    is_stdin: bool = False
    asks_user: bool = False
    speaks: bool = False
    is_note: bool = False


@lru_cache(4096)
def _tool(name: str) -> _Tool:
    # "mcp__github__create_issue", "functions.read_file": the tool's own name is the last part.
    own = _SEPARATORS.split(name)[-1]
    plain = _PLAIN.sub("_", own.lower()).strip("_")
    words = [word.lower() for word in _WORDS.findall(own)]
    if plain in _ASKS:
        return _Tool(None, asks_user=True)
    if plain in _SUBMITS or "_".join(words) in _SUBMITS:
        return _Tool(Effect.SUBMITS)
    if plain in _WAITS:
        return _Tool(Effect.WAITS)
    if plain in _SHELLS:
        return _Tool(None, command_in=("command", "cmd", "script", "input"))
    if plain in _EDITORS or plain in _STDIN:
        return _Tool(None, is_editor=plain in _EDITORS, is_stdin=plain in _STDIN)
    if "replace" in words:
        return _Tool(Effect.EDITS)
    speaks = not _SPEAKS.isdisjoint(words[:1])
    return (
        _Tool(_effect_of_name(words), speaks=speaks)
        if _NOTES.isdisjoint(words)
        else _Tool(None, is_note=True)
    )


def _effect_of_name(words: list[str]) -> Effect | None:
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
    return Effect.POLLS if "git" not in words and not _STATES.isdisjoint(words) else None


def effect_of_tool(name: str) -> Effect | None:
    """Return the effect of a tool from its name alone; None if unknown."""
    return _tool(name).effect


def asks_user(name: str) -> bool:
    """Return whether a tool asks a person and waits for the answer."""
    return _tool(name).asks_user


def speaks(name: str) -> bool:
    """Return whether a tool sends a message that may be answered."""
    return _tool(name).speaks


def is_note(name: str) -> bool:
    """Return whether an agent takes notes for itself with a tool."""
    return _tool(name).is_note


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
        command = _text_in(arguments, ("command",))
        if command == "view":
            return Effect.READS
        return Effect.CHANGES if command.startswith("undo") else Effect.EDITS
    if traits.is_stdin:
        # Empty input only polls for more output.
        return None if _text_in(arguments, ("chars", "input", "text", "data")).strip() else Effect.WAITS
    if traits.effect is Effect.WAITS and _is_short(arguments):
        return Effect.READS
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


def _is_short(arguments: object) -> bool:
    """Return whether a wait is told how long to last, and that is next to nothing."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return False
    if not isinstance(arguments, Mapping):
        return False
    lengths = [
        min(value, 1e9) * (0.001 if "ms" in key or "milli" in key else 60.0 if "min" in key else 1.0)
        for key, value in ((str(key).lower(), value) for key, value in arguments.items())
        if isinstance(value, int | float) and not isinstance(value, bool) and _WAIT_KEYS.fullmatch(key)
    ]
    return bool(lengths) and max(lengths) < _SHORTEST_WAIT


@lru_cache(1024)
def effect_of_command(command: str) -> Effect | None:
    """
    Return the effect of a shell command.

    It reads if all of its parts read, and edits if the others write what the command contains. It waits if it
    also sleeps, whatever else it reads.
    """
    if _SPECIAL.search(command) is None:
        words = command.split()
        return _effect_of_words(words) if words and words[0] not in _PREFIXES else None
    if "<<" in command:
        command, replaced = _HERE_DOCUMENT.subn(r" <<\2 \3", command)
        if not replaced:
            command = command.partition("\n")[0]
    bare = _QUOTED.sub("''", command) if "'" in command or '"' in command else command
    effects: set[Effect | None] = set()
    for part in _PARTS.split(bare):
        effect = _effect_of_part(part)
        if effect is Effect.CHANGES:
            return effect
        if effect is not Effect.READS:
            effects.add(effect)
    if not effects:
        return Effect.READS
    if Effect.EDITS in effects:
        return Effect.CHANGES if effects & {None, Effect.RUNS} else Effect.EDITS
    if Effect.WAITS in effects or ("sleep" in bare and _LOOPS.search(bare) is not None):
        return Effect.WAITS
    if Effect.RUNS in effects:
        return Effect.RUNS
    if None in effects:
        return None
    return Effect.POLLS if Effect.POLLS in effects else Effect.SEARCHES


def _effect_of_part(part: str) -> Effect | None:
    """Return what a part of a command does; nothing at all is reading, too."""
    words = part.split()
    while words and (words[0] in _PREFIXES or ("=" in words[0] and not words[0].startswith("="))):
        del words[0]
    if words and words[0] == "timeout" and len(words) > 2:
        del words[:2]
    if ">" in part and _REDIRECT.search(part) is not None:
        return Effect.EDITS if words and words[0] in _WRITES else Effect.CHANGES
    return _effect_of_words(words) if words else Effect.READS


def _effect_of_words(words: list[str]) -> Effect | None:
    name = words[0].rsplit("/", 1)[-1]
    second = words[1] if len(words) > 1 else ""
    if name in ("sleep", "wait"):
        return Effect.WAITS if name == "wait" or _slept(words[1:]) >= _SHORTEST_WAIT else Effect.READS
    if name == "sed":
        return Effect.EDITS if any(word.startswith(("-i", "--in-place")) for word in words) else Effect.READS
    if name == "find" and any(word in ("-delete", "-exec") for word in words):
        return None
    if name in _SHELL_POLLS or (name in _LOOKS_AT_STATES and _POLLED.match(" ".join(words))):
        return Effect.POLLS
    if name in _SHELL_SEARCHES:
        return Effect.READS if any(_COUNTS.fullmatch(word) for word in words[1:]) else Effect.SEARCHES
    if name in _SHELL_READS:
        return Effect.READS
    if name in _SHELL_EDITS:
        return Effect.EDITS
    if name in _SHELL_CHANGES:
        return Effect.CHANGES
    if name == "git":
        plain = next((word for word in words[1:] if not word.startswith("-")), "")
        if plain == "grep":
            return Effect.SEARCHES
        return Effect.READS if plain in _GIT_READS else Effect.CHANGES if plain else None
    if name in _INSTALLERS and second in _INSTALLS:
        return Effect.CHANGES
    if _RUNNERS.fullmatch(name) or words[0].startswith(("./", "../", "/", "~/")):
        return Effect.RUNS
    return None


def _slept(words: list[str]) -> float:
    """Return how many seconds ``sleep`` sleeps; for ever if that cannot be read."""
    lengths = [_LENGTH.fullmatch(word) for word in words]
    if not lengths or None in lengths:
        return math.inf
    return sum(float(one[1]) * _UNITS[one[2]] for one in lengths if one is not None)
