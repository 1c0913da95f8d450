"""
Completing what is typed: the scripts for bash, zsh and fish, and what they ask for at a key press.

A script hands the line up to the cursor over in ``_QUEENRIGHT_LINE`` and gets a line a proposal: the word, a
tab, what it is. The shell evaluates none of it: names come from a service, and anybody may choose one.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer

from queenright.cli.errors import UsageError
from queenright.instrumentation.errors import QueenrightError

LINE: Final = "_QUEENRIGHT_LINE"

_BASH: Final = r"""
_queenright_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" word found
    COMPREPLY=()
    while IFS=$'\t' read -r found _; do
        COMPREPLY+=("$found")
    done < <(_QUEENRIGHT_LINE="$line" "$1" 2>/dev/null)
    # Where a colon ends a word, only what follows the last one is replaced.
    word="${line##* }"
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%:*}:"}")
    fi
}
complete -o default -F _queenright_completion queenright
"""

_ZSH: Final = r"""
#compdef queenright
_queenright() {
    local -a words_ shown_
    local found what
    while IFS=$'\t' read -r found what; do
        words_+=("$found")
        shown_+=("$found${what:+  -- $what}")
    done < <(_QUEENRIGHT_LINE="${(j: :)words[1,CURRENT]}" queenright 2>/dev/null)
    if (( $#words_ )); then
        compadd -l -d shown_ -a words_
    else
        _files
    fi
}
if [[ $funcstack[1] == _queenright ]]; then _queenright "$@"; else compdef _queenright queenright; fi
"""

_FISH: Final = r"""
function __queenright_complete
    set -l found (_QUEENRIGHT_LINE=(commandline -cp) queenright 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command queenright --no-files --arguments '(__queenright_complete)'
"""

SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def answer(line: str) -> None:
    """Print what may follow a line: words, a tab, and what they are."""
    for value, what in proposals(line):
        typer.echo(f"{value}\t{' '.join(what.split())}" if what else value)


def proposals(line: str) -> Iterator[tuple[str, str]]:
    """Yield words that may stand at the end of a line, and what each is. None: a file may, or nothing."""
    from typer._completion_classes import BashComplete

    from queenright.cli.main import app

    words = _words(line)[1:]
    incomplete = words.pop() if words and not line[-1:].isspace() else ""
    command: Any = typer.main.get_command(app)
    for item in BashComplete(command, {}, "queenright", LINE).get_completions(words, incomplete):
        if item.type == "plain":
            yield str(item.value), str(item.help or "")


def _words(line: str) -> list[str]:
    """Return the words of a line; of one with an open quote, those before it."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def script(shell: str | None) -> str:
    """
    Return the script for a shell; without one, for that of ``$SHELL``.

    Raises:
        QueenrightError: There is none for it.
    """
    return SCRIPTS[_shell(shell)].strip() + "\n"


def install(shell: str | None, home: Path) -> str:
    """
    Put the script where the shell finds it; return what to say of it. Twice is the same as once.

    Raises:
        QueenrightError: There is none for this shell, or a file cannot be written.
    """
    name = _shell(shell)
    places = {
        "bash": (home / ".local/share/bash-completion/completions/queenright", home / ".bashrc"),
        "zsh": (home / ".zfunc/_queenright", home / ".zshrc"),
        "fish": (home / ".config/fish/completions/queenright.fish", None),
    }
    file, startup = places[name]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(script(name), encoding="utf-8")
        if startup is not None:
            wanted = {
                "bash": f'[ -r "{file}" ] && . "{file}"  # queenright',
                "zsh": "fpath+=~/.zfunc; autoload -Uz compinit && compinit  # queenright",
            }[name]
            there = startup.read_text(encoding="utf-8") if startup.is_file() else ""
            if wanted not in there:
                startup.write_text(f"{there.rstrip()}\n{wanted}\n".lstrip(), encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QueenrightError(f"{file} cannot be installed: {error}; see --show-completion") from error
    return f"Completion for {name} is in {file}; it begins with the next terminal."


def _shell(said: str | None) -> str:
    name = said or re.sub(r"^-", "", Path(os.environ.get("SHELL", "")).name)
    if name not in SCRIPTS:
        known = ", ".join(SCRIPTS)
        raise UsageError(f"There is no completion for {name or 'this shell'!r}; say one of: {known}.")
    return name
