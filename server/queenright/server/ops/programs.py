"""Find the programs that Queenright runs but does not ship, such as Prometheus and Alertmanager."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from queenright.instrumentation.errors import QueenrightError


class _Program(NamedTuple):
    debian: str
    """The package on Debian and Ubuntu."""
    brew: str
    """The arguments of `brew install` on macOS."""
    aliases: tuple[str, ...] = ()
    """Alternative names and paths."""


_PROGRAMS: Final = {
    "prometheus": _Program("prometheus", "prometheus"),
    "promtool": _Program("prometheus", "prometheus"),
    "alertmanager": _Program("prometheus-alertmanager", "alertmanager", ("prometheus-alertmanager",)),
    "amtool": _Program("prometheus-alertmanager", "alertmanager"),
    "chromium": _Program(
        "chromium",
        "--cask google-chrome",
        (
            "chromium-browser",
            "google-chrome",
            "google-chrome-stable",
            "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
            "/Applications/Chromium.app/Contents/MacOS/Chromium",
        ),
    ),
}


class ProgramNotFoundError(QueenrightError):
    """Raised when a program is not found. The message has the searched places and how to install it."""

    def __init__(self, name: str, *, chosen_program: str | None = None) -> None:
        if chosen_program is not None:
            variable = _get_variable_name(name)
            text = f"{variable} is {chosen_program!r}, which is not a program; correct or unset it."
        else:
            program = _PROGRAMS.get(name, _Program(name, name))
            remedy = (
                f"run: brew install {program.brew}"
                if sys.platform == "darwin"
                else f"install the package {program.debian} (Debian, Ubuntu) or let `make` fetch it"
            )
            text = (
                f"{name} was not found in ${_get_variable_name(name)}, on PATH or in .tools/bin; "
                f"{remedy}, or set {_get_variable_name(name)} to its path."
            )
        super().__init__(text)
        self.name = name


def find_program(name: str) -> Path | None:
    """
    Return the path of a program.

    Searches ``$NAME_BIN``, then ``PATH``, then ``.tools/bin`` in the working folder, this checkout, or their
    parents.

    Raises:
        ProgramNotFoundError: ``$NAME_BIN`` is set and is not a program.
    """
    if chosen_program := os.environ.get(_get_variable_name(name)):
        if path := shutil.which(chosen_program):
            return Path(path)
        raise ProgramNotFoundError(name, chosen_program=chosen_program)
    aliases = _PROGRAMS[name].aliases if name in _PROGRAMS else ()
    for candidate in (name, *aliases, *(str(folder / name) for folder in _list_tool_folders())):
        if path := shutil.which(candidate):
            return Path(path)
    return None


def _get_variable_name(name: str) -> str:
    return f"{name.upper()}_BIN"


def _list_tool_folders() -> Iterator[Path]:
    """Yield each ``.tools/bin`` in the working folder and its parents, then in those of this file."""
    for start in (Path.cwd(), Path(__file__).resolve().parent):
        for folder in (start, *start.parents):
            tools = folder / ".tools" / "bin"
            # A parent folder such as /tmp may be writable by anyone. Do not run programs of other users.
            with contextlib.suppress(OSError):
                if tools.stat().st_uid in (0, os.getuid()):
                    yield tools
