"""Options of `queenright run`, and their validation."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from queenright.cli.errors import UsageError
from queenright.cli.options import (
    Config,
    EntryPoint,
    InputText,
    Json,
    Model,
    SendTelemetry,
    SessionStorage,
)

INPUT_BYTES: Final = 10_000_000
"""Maximum size of --input, so that a wrong file cannot fill the memory."""

_MAX_DEPTH: Final = 100
"""Maximum nesting of lists and objects; a session's state can hold a little more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of the command line."""

    path: Annotated[Path, typer.Argument(help="Folder of the agent, with agent.json or agent.py.")]
    input_text: InputText = None
    entry_point: EntryPoint = None
    model: Model = None
    storage: SessionStorage = None
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="Start the run in this session, with its memory.")
    ] = None
    resume: Annotated[
        str | None, typer.Option(metavar="ID", help="Resume the unfinished run of this session.")
    ] = None
    as_json: Json = False
    config: Config = None
    telemetry: SendTelemetry = True
    approve_tools: Annotated[
        bool, typer.Option("--approve-tools", help="Ask before each tool call; y allows it.")
    ] = False

    def check(self) -> None:
        """
        Check the options.

        Raises:
            UsageError: The options contradict each other.
        """
        texts = {
            "session": self.session,
            "resume": self.resume,
            "entry-point": self.entry_point,
            "model": self.model,
        }
        for option, value in texts.items():
            # Usually an unset variable in a script; ignoring it could repeat finished work.
            if value is not None and not value.strip():
                raise UsageError(f"--{option} is empty; give a value or leave it out.")
        if self.session and self.resume:
            raise UsageError(
                "--session starts a new run in a session, --resume continues its last run; use one of them."
            )
        if self.resume and (self.input_text is not None or self.entry_point):
            raise UsageError("--resume continues a run; --input and --entry-point are for a new run.")
        if not self.path.exists():
            raise UsageError(f"There is no agent at {self.path}; pass a folder with agent.json or agent.py.")

    def command(self, *extra_arguments: str) -> str:
        """Return a command that runs the same agent with the same options and ``extra_arguments``."""
        words = ["queenright", "run", str(self.path), *extra_arguments]
        words += ["--model", self.model] if self.model else []
        words += ["--storage", str(self.storage)] if self.storage else []
        words += ["--config", str(self.config)] if self.config else []
        return shlex.join(words)

    def resume_command(self, session_id: str) -> str:
        """Return the command that resumes a session."""
        return self.command("--resume", session_id)


def read_input(text: str | None) -> dict[str, Any]:
    """
    Return the JSON object of --input, given as text or as ``@file``; an empty one without the option.

    Raises:
        UsageError: The input is not a JSON object, too large or too deep, or the file cannot be read.
    """
    if text is None:
        return {}
    name = "--input"
    if text.startswith("@"):
        name = f"--input {text}"
        text = _read_file(Path(text[1:]))
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_finite)
    except ValueError as error:
        raise UsageError(f"{name} is not JSON: {error}") from error
    except RecursionError:
        raise UsageError(_describe_excess_depth(name)) from None
    if not isinstance(value, dict):
        raise UsageError('--input must be a JSON object, such as \'{"question": "..."}\'.')
    if not _is_shallow(value):
        raise UsageError(_describe_excess_depth(name))
    return value


def _read_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(INPUT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--input @{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:  # a path with a null byte
        raise UsageError(f"--input @{path} cannot be read: {error}.") from error
    if len(data) > INPUT_BYTES:
        raise UsageError(f"--input @{path} is longer than {INPUT_BYTES // 1_000_000} MB; use a smaller file.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"--input @{path} is not JSON: it is not UTF-8.") from error


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"JSON has no {constant}; use null")


def _parse_finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is too large")
    return number


def _describe_excess_depth(name: str) -> str:
    return f"{name} is nested too deeply: the limit is {_MAX_DEPTH} levels."


def _is_shallow(value: object) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            child
            for parent in level
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
    return not any(isinstance(value, dict | list) for value in level)
