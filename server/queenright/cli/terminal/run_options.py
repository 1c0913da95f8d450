"""What `queenright run` is told on the command line, and what of it makes no sense."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from queenright.cli.errors import UsageError

INPUT_BYTES: Final = 10_000_000
"""A longer --input is refused, so that a wrong file cannot fill the memory."""

_DEPTH: Final = 100
"""Lists and objects within each other: a session's state can hold so many, and some more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line says."""

    path: Path
    input_text: str | None = None
    entry_point: str | None = None
    model: str | None = None
    storage: Path | None = None
    session: str | None = None
    resume: str | None = None
    as_json: bool = False
    config: Path | None = None
    telemetry: bool = True
    approve_tools: bool = False

    def check(self) -> None:
        """
        Look whether it makes sense.

        Raises:
            UsageError: It does not.
        """
        named = {
            "session": self.session,
            "resume": self.resume,
            "entry-point": self.entry_point,
            "model": self.model,
        }
        for option, value in named.items():
            # A variable of a script that is not set: without a word the work might be done twice.
            if value is not None and not value.strip():
                raise UsageError(f"--{option} is empty; say which, or leave it out.")
        if self.session and self.resume:
            raise UsageError(
                "--session begins a new run in a session, --resume goes on with its last; say one."
            )
        if self.resume and (self.input_text is not None or self.entry_point):
            raise UsageError(
                "--resume goes on where the run was; --input and --entry-point are for a new run."
            )
        if not self.path.exists():
            raise UsageError(f"There is no agent at {self.path}.")

    def command(self, *more: str) -> str:
        """Return a command that runs the same agent in the same way, and what else it is told."""
        words = ["queenright", "run", str(self.path), *more]
        words += ["--model", self.model] if self.model else []
        words += ["--storage", str(self.storage)] if self.storage else []
        words += ["--config", str(self.config)] if self.config else []
        return shlex.join(words)

    def resume_command(self, session_id: str) -> str:
        """Return the command that takes up a session."""
        return self.command("--resume", session_id)


def read_input(text: str | None) -> dict[str, Any]:
    """
    Return what --input says: a JSON object, or ``@file`` with one; nothing is an empty one.

    Raises:
        UsageError: It is none, too long or too deep, or the file cannot be read.
    """
    if text is None:
        return {}
    what = "--input"
    if text.startswith("@"):
        what = f"--input {text}"
        text = _read(Path(text[1:]))
    try:
        value = json.loads(text, parse_constant=_refused, parse_float=_finite)
    except ValueError as error:
        raise UsageError(f"{what} is no JSON: {error}") from error
    except RecursionError:
        raise UsageError(_too_deep(what)) from None
    if not isinstance(value, dict):
        raise UsageError('--input must be a JSON object, such as \'{"question": "..."}\'.')
    if not _shallow(value):
        raise UsageError(_too_deep(what))
    return value


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(INPUT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--input @{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # a path with a null byte
        raise UsageError(f"--input @{path} cannot be read: {error}.") from error
    if len(data) > INPUT_BYTES:
        raise UsageError(f"--input @{path} is longer than {INPUT_BYTES // 1_000_000} MB; give less.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"--input @{path} is no JSON: it is not UTF-8.") from error


def _refused(constant: str) -> float:
    raise ValueError(f"it has no {constant}; give null, or leave it out")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is too large")
    return number


def _too_deep(what: str) -> str:
    return f"{what} is nested too deep: lists and objects may be within each other {_DEPTH} times."


def _shallow(value: object) -> bool:
    level = [value]
    for _ in range(_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return not any(isinstance(value, dict | list) for value in level)
