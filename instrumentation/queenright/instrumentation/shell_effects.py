"""The effect of a shell command, from its words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from queenright.instrumentation.effect import Effect
from queenright.instrumentation.word_tables import read_words

COMMAND_HEAD: Final = 2_000
"""Characters of a command that are analysed."""

MIN_WAIT_SECONDS: Final = 5.0
"""Seconds. A shorter sleep only lets something settle and is not a wait."""

_WORD_SETS: Final = read_words("commands")

_QUOTATION: Final = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"")
_SPECIAL: Final = re.compile(r"[;|&<>\n'\"]")
_REDIRECT: Final = re.compile(r"(?<![0-9&<=-])[12]?>{1,2}(?!\s*(?:/dev/null|&))")
_PARTS: Final = re.compile(r"&&|\|\||[;|\n]")
_HERE_DOCUMENT: Final = re.compile(
    r"<<-?\s*(['\"]?)(\w+)\1([^\n]*)\n(?:.*?\n)??\s*\2[ \t]*(?=\n|\Z)", re.DOTALL
)
_LOOPS: Final = re.compile(r"\b(?:for|while|until)\b")
_OTHER_SHELL: Final = re.compile(
    r"\s*(?:\S*/)?(?:ba|da|z|k)?sh (?:-\w+ ){0,3}-\w*c (?:'([^']*)'|\"((?:[^\"\\]|\\.)*)\")\s*"
)
"""``bash -lc '...'``."""

_WRAPPERS: Final = {
    "sudo": "CDghpRrTtuU",
    "doas": "Cu",
    "env": "CSu",
    "timeout": "ks",
    "time": "fo",
    "nice": "n",
    "ionice": "cnp",
    "stdbuf": "eio",
    "xargs": "adEILnPs",
    "watch": "n",
    "command": "",
    "nohup": "",
    "then": "",
    "do": "",
    "else": "",
    "if": "",
    "while": "",
    "until": "",
    "!": "",
}
"""Commands that run the command after them, with the letters of their options that take a value."""

_READS: Final = _WORD_SETS["reads"]
_SEARCHES: Final = _WORD_SETS["searches"]
_POLLS: Final = _WORD_SETS["polls"]
_PORT_CLIENTS: Final = _WORD_SETS["port_clients"]
_SCANS: Final = re.compile(r"-[a-zA-Z]*z\w*")
"""The option with which these only check whether a port is open."""
_CHANGES: Final = _WORD_SETS["changes"]
_EDITS: Final = _WORD_SETS["edits"]
_WRITES: Final = _WORD_SETS["writes"]

_FIND_ACTS: Final = _WORD_SETS["find_acts"]
_COUNTS: Final = re.compile(r"-[a-zA-Z]*[cqL]\w*|--(?:count|quiet|silent|files-without-match)")
"""Options with which an empty result is a success."""
_LOG: Final = re.compile(r"\b(?:log|out|err)\b|\blogs?/")
_RUNNERS: Final = re.compile(
    r"(?:python|pypy|ruby|perl|php|lua|node|deno|bun|java|julia|Rscript)[\d.]*|(?:ba|da|z|fi)?sh|source|\.|exec|eval"
    r"|uv|poetry|pipx|black|isort|autopep8|ruff|gofmt|rustfmt|prettier|eslint|clang-format|make|npm|npx|pnpm|yarn|cargo|go|gradle|mvn|ansible\S*|sqlite3|psql|mysql|wget"
    r"|cmake|ninja|bazel|dotnet|mix|rake|bundle|sbt|just|gcc|g\+\+|cc|clang(?:\+\+)?|javac|rustc"
)
"""Commands that run a script, build something, or request a change elsewhere."""
_BUILDS: Final = re.compile(r"\S*build\S*")
_CHECKERS: Final = re.compile(
    r"(?!\S*latest)\S*(?:test|lint|check|verify|validate|py_?compile)\S*|vet|clippy|tox|nox|mypy|pyright|flake8"
    r"|bandit|tsc|jest|mocha|ava|rspec|phpunit|rubocop|pre-commit"
)
"""Commands that check earlier work, and the scripts, modules and targets that run such checks."""
_MAX_CHECK_WORDS: Final = 4
"""Leading words of a command, without options, that are searched for a check: ``npm run lint``."""
_FIXES: Final = _WORD_SETS["fixes"]

_INSTALLERS: Final = _WORD_SETS["installers"]
_INSTALLS: Final = _WORD_SETS["installs"]
_GIT_READS: Final = _WORD_SETS["git_reads"]
_GIT_VALUED: Final = _WORD_SETS["git_valued"]

_CLIENTS: Final = _WORD_SETS["clients"]

_CLIENT_READS: Final = _WORD_SETS["client_reads"]
_CLIENT_CHANGES: Final = _WORD_SETS["client_changes"]
_CONTAINER_CLIENTS: Final = _WORD_SETS["container_clients"]
_RUN_INSIDE: Final = _WORD_SETS["run_inside"]

_FOLLOWS: Final = re.compile(r"-\w*[fF]|--follow(?:=\S*)?")
_WATCHES: Final = re.compile(r"-w|--watch(?:=true)?|--wait")
"""Options with which a read continues until it is stopped or its condition is met."""
_CURL_SENDS: Final = re.compile(
    r" (?:-\w*[dFTO]|--(?:data|json|form|upload|remote-name)"
    r"|(?:-\w*X ?+|--request[ =])(?!GET\b|HEAD\b)|(?:-\w*o ?+|--output[ =])(?!/dev/null\b|-(?: |$)))"
)
_GH_SENDS: Final = re.compile(
    r" (?:-[fF]|--(?:field|raw-field|input)\b|(?:-X ?|--method[ =])(?!GET\b|HEAD\b))"
)

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([smhd]?)")
_SLEEPS: Final = re.compile(r"\bsleep((?: +[\d.]{1,9}[smhd]?)+)")
_POWERSHELL_SECONDS: Final = re.compile(r"-sleep (?:-s\w* )?(\d{1,9}(?:\.\d+)?)\b", re.IGNORECASE)
_SCRIPT_SLEEPS: Final = re.compile(r"\bsleep\((\d{1,9}(?:\.\d+)?)\)")
_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


@lru_cache(1024)
def infer_command_effect(command: str) -> Effect | None:
    """
    Return the effect of a shell command.

    It reads if all of its parts read, and edits if the other parts only write text of the command. It waits
    if it also sleeps.
    """
    if _SPECIAL.search(command) is None:
        words = command.split()
        return _infer_words_effect(words) if words else None
    if "sh " in command and (shell_match := _OTHER_SHELL.fullmatch(command)) is not None:
        return infer_command_effect(shell_match[1] or shell_match[2] or "")
    if "<<" in command:
        command, document_count = _HERE_DOCUMENT.subn(r" <<\2 \3", command)
        if not document_count:
            command = command.partition("\n")[0]
    unquoted_command = _QUOTATION.sub("''", command) if "'" in command or '"' in command else command
    effects: set[Effect | None] = set()
    for part in _PARTS.split(unquoted_command):
        effect = _infer_part_effect(part)
        if effect is Effect.CHANGES:
            return effect
        if effect is not Effect.READS:
            effects.add(effect)
    if Effect.EDITS in effects:
        return Effect.CHANGES if effects & {None, Effect.RUNS, Effect.CHECKS} else Effect.EDITS
    if Effect.WAITS in effects or (
        "sleep" in unquoted_command and _LOOPS.search(unquoted_command) is not None
    ):
        return Effect.WAITS
    if "sleep(" in command and _get_script_sleep_seconds(command) >= MIN_WAIT_SECONDS:
        return Effect.WAITS
    if not effects:
        return Effect.READS
    if Effect.RUNS in effects:
        return Effect.RUNS
    if Effect.CHECKS in effects:
        return Effect.CHECKS
    if None in effects:
        return None
    return Effect.POLLS if Effect.POLLS in effects else Effect.SEARCHES


def _infer_part_effect(part: str) -> Effect | None:
    """Return the effect of a part of a command; an empty part reads."""
    words = part.split()
    if ">" in part and _REDIRECT.search(part) is not None:
        words = _strip_wrappers(words)
        return Effect.EDITS if words and words[0] in _WRITES else Effect.CHANGES
    return _infer_words_effect(words)


def _strip_wrappers(words: list[str]) -> list[str]:
    """Return the command without wrappers: ``ls`` for ``env A=b timeout -k 5 10 ls``."""
    index, size = 0, len(words)
    while index < size:
        wrapper = words[index].rsplit("/", 1)[-1]
        letters = _WRAPPERS.get(wrapper)
        if letters is None:
            if "=" not in words[index] or words[index][0] in "=-[":
                break
            index += 1
            continue
        index += 1
        while index < size and words[index][0] == "-":
            index += 2 if len(words[index]) == 2 and words[index][1] in letters else 1
        if wrapper == "timeout":
            index += 1  # its length
    return words[index:] if index else words


def _infer_words_effect(words: list[str]) -> Effect | None:
    words = _strip_wrappers(words)
    if not words:
        return Effect.READS
    name = words[0].rsplit("/", 1)[-1]
    name = name.lower() if "-" in name else name  # PowerShell's `Get-Content`
    if name in _CLIENTS:
        return _infer_client_effect(name, words)
    if name in ("tail", "journalctl") and any(_FOLLOWS.fullmatch(word) for word in words[1:]):
        return Effect.WAITS
    if name in _POLLS or (name == "tail" and any(_LOG.search(word) for word in words)):
        return Effect.POLLS
    if name in _PORT_CLIENTS and any(_SCANS.fullmatch(word) for word in words[1:]):
        return Effect.POLLS
    if name in _SEARCHES:
        if name == "find" and (acts := _FIND_ACTS.intersection(words)):
            act = next(iter(acts))
            return Effect.CHANGES if "-delete" in acts else _infer_words_effect(words[words.index(act) + 1 :])
        return Effect.READS if any(_COUNTS.fullmatch(word) for word in words[1:]) else Effect.SEARCHES
    if name in _READS:
        return Effect.READS
    if name in ("sleep", "wait"):
        return (
            Effect.WAITS if name == "wait" or _sleep_seconds(words[1:]) >= MIN_WAIT_SECONDS else Effect.READS
        )
    if name == "start-sleep":
        seconds = _POWERSHELL_SECONDS.search(" ".join(words))
        return Effect.WAITS if seconds and float(seconds[1]) >= MIN_WAIT_SECONDS else Effect.READS
    if name == "sed":
        return Effect.EDITS if any(word.startswith(("-i", "--in-place")) for word in words) else Effect.READS
    if name == "curl":
        return _infer_request_effect(words)
    if name in _EDITS:
        return Effect.EDITS
    if name in _CHANGES:
        return Effect.CHANGES
    if name == "git":
        return _infer_git_effect(words)
    if name in _INSTALLERS and len(words) > 1 and words[1] in _INSTALLS:
        return Effect.CHANGES
    is_runner = _RUNNERS.fullmatch(name) is not None or words[0].startswith(("./", "../", "/", "~/"))
    if _FIXES.isdisjoint(words) and _is_check(name, words, _MAX_CHECK_WORDS if is_runner else 2):
        return Effect.CHECKS
    return Effect.RUNS if is_runner or any(_BUILDS.fullmatch(word) for word in words[:2]) else None


def _is_check(name: str, words: Sequence[str], max_words: int) -> bool:
    """Return whether the command, its script or module, or its target is a check; a path after it is not."""
    candidate_words = [name, *(word for word in words[1:] if word[0] != "-" or _CHECKERS.fullmatch(word))][
        :max_words
    ]
    return any(
        _CHECKERS.fullmatch(word.rsplit("/", 1)[-1])
        for index, word in enumerate(candidate_words)
        if index < 2 or ("." not in word and "/" not in word)
    )


def _infer_git_effect(words: Sequence[str]) -> Effect | None:
    index = 1
    while index < len(words) and words[index][0] == "-":
        index += 2 if words[index] in _GIT_VALUED else 1
    if index >= len(words):
        return None
    if words[index] == "grep":
        return Effect.SEARCHES
    return Effect.READS if words[index] in _GIT_READS else Effect.CHANGES


def _infer_client_effect(name: str, words: list[str]) -> Effect:
    """Return the effect of the first verb; options with values may precede it."""
    plain_words = [word for word in words[1:] if word[0] not in "-'\""]
    if name in ("gh", "glab"):
        if "api" in plain_words[:2]:
            return _infer_request_effect(words)
        plain_words = plain_words[1:]  # "run" or "release": the kind of resource
    if "rollout" in plain_words and "status" in plain_words and "--watch=false" not in words:
        return Effect.WAITS
    for word in plain_words:
        if name == "aws":
            # "describe-stacks"; the service itself may be called "logs".
            verb, hyphen, _ = word.partition("-")
            word = verb if hyphen or verb == "ls" else ""
        if word in _CLIENT_READS:
            pattern = _FOLLOWS if word in ("log", "logs") else _WATCHES
            options = words[words.index(word) + 1 :] if word in words else words
            return Effect.WAITS if any(pattern.fullmatch(option) for option in options) else Effect.POLLS
        if word in _CLIENT_CHANGES:
            return Effect.CHANGES
        if word == "wait" or (word == "watch" and name == "gh"):
            return Effect.WAITS
        if word in _RUN_INSIDE and name in _CONTAINER_CLIENTS:
            # ``exec`` or ``run``, the container, and its command unless options with values come before it.
            effect = _infer_words_effect(plain_words[plain_words.index(word) + 2 :])
            return effect if effect in (Effect.CHECKS, Effect.POLLS) else Effect.RUNS
    return Effect.RUNS


def _infer_request_effect(words: Sequence[str]) -> Effect:
    """Return the effect of a request: it reads unless it sends data, is not a GET, or writes a file."""
    pattern = _CURL_SENDS if words[0].endswith("curl") else _GH_SENDS
    return Effect.POLLS if pattern.search(" ".join(words)) is None else Effect.CHANGES


def sleep_seconds(command: str) -> float:
    """Return the seconds that a command sleeps, if stated; a loop counts once."""
    if "sleep" not in command:
        return 0.0
    durations = (_sleep_seconds(match.split()) for match in _SLEEPS.findall(command))
    return sum(duration for duration in durations if duration < math.inf)


def _get_script_sleep_seconds(command: str) -> float:
    """Return the longest ``sleep(...)`` of a script in a command, in seconds."""
    return max((float(length) for length in _SCRIPT_SLEEPS.findall(command)), default=0.0)


def _sleep_seconds(words: Sequence[str]) -> float:
    """Return how many seconds ``sleep`` sleeps; infinity if its arguments cannot be parsed."""
    durations = [_DURATION.fullmatch(word) for word in words]
    if not durations or None in durations:
        return math.inf
    return sum(float(duration[1]) * _UNITS[duration[2]] for duration in durations if duration is not None)
