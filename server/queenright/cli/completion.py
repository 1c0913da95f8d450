"""
Shell completion: the scripts for bash, zsh and fish, and the proposals that they request.

A script passes the command line up to the cursor in ``_QUEENRIGHT_LINE`` and reads one proposal per line: the
word, a tab, its description. The shell evaluates none of it, because names come from a service and anyone can
choose one.
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

LINE_VARIABLE: Final = "_QUEENRIGHT_LINE"

_BASH: Final = r"""
_queenright_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" word found
    COMPREPLY=()
    while IFS=$'\t' read -r found _; do
        COMPREPLY+=("$found")
    done < <(_QUEENRIGHT_LINE="$line" "$1" 2>/dev/null)
    # A colon is a word break in bash: only what follows the last one is replaced.
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


def print_proposals(app: typer.Typer, line: str) -> None:
    """Print the proposals for a line: the word, a tab, its description."""
    for word, description in list_proposals(app, line):
        typer.echo(f"{word}\t{' '.join(description.split())}" if description else word)


def list_proposals(app: typer.Typer, line: str) -> Iterator[tuple[str, str]]:
    """Yield the words that can complete a line, with descriptions; none if a file name or nothing follows."""
    from typer._completion_classes import BashComplete

    words = _split_line(line)[1:]
    incomplete = words.pop() if words and not line[-1:].isspace() else ""
    command: Any = typer.main.get_command(app)
    for item in BashComplete(command, {}, "queenright", LINE_VARIABLE).get_completions(words, incomplete):
        if item.type == "plain":
            yield str(item.value), str(item.help or "")


def _split_line(line: str) -> list[str]:
    """Split a line into words; a line with an open quote is split at blanks."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def get_script(shell: str | None) -> str:
    """
    Return the script for a shell. Default: the shell of ``$SHELL``.

    Raises:
        UsageError: There is no script for this shell.
    """
    return SCRIPTS[_detect_shell(shell)].strip() + "\n"


def install_script(shell: str | None, home: Path) -> str:
    """
    Install the script for a shell; return a message about it. Installing twice changes nothing.

    Raises:
        QueenrightError: There is no script for this shell, or a file cannot be written.
    """
    name = _detect_shell(shell)
    paths = {
        "bash": (home / ".local/share/bash-completion/completions/queenright", home / ".bashrc"),
        "zsh": (home / ".zfunc/_queenright", home / ".zshrc"),
        "fish": (home / ".config/fish/completions/queenright.fish", None),
    }
    file, startup = paths[name]
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(get_script(name), encoding="utf-8")
        if startup is not None:
            line = {
                "bash": f'[ -r "{file}" ] && . "{file}"  # queenright',
                "zsh": "fpath+=~/.zfunc; autoload -Uz compinit && compinit  # queenright",
            }[name]
            startup_text = startup.read_text(encoding="utf-8") if startup.is_file() else ""
            if line not in startup_text:
                startup.write_text(f"{startup_text.rstrip()}\n{line}\n".lstrip(), encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QueenrightError(
            f"cannot install {file}: {error}; --show-completion prints the script instead"
        ) from error
    return f"Installed completion for {name} in {file}; it is active in new terminals."


def _detect_shell(shell: str | None) -> str:
    name = shell or re.sub(r"^-", "", Path(os.environ.get("SHELL", "")).name)
    if name not in SCRIPTS:
        raise UsageError(
            f"There is no completion for {name or 'this shell'!r}; available for: {', '.join(SCRIPTS)}."
        )
    return name
