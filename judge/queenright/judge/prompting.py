"""
The system prompts. They are versioned texts in ``prompts/``, with the configured thresholds filled in.

They contain neither data about a worker nor a time, so that a provider can cache them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import resources
from pathlib import Path
from string import Template
from typing import Final

from queenright.health.settings import HealthSettings
from queenright.instrumentation.errors import QueenrightError
from queenright.judge import escalation_policy, ticket_policy

_FRONT_MATTER = re.compile(r"\A---\nversion: *(\d{1,9}) *\n---\n")
_HEADER = re.compile(
    r"\A\s*---[ \t]*\n(?:[\w -]+:.*\n)*?[ \t]*version[ \t]*:[ \t]*(.*?)[ \t]*\n", re.IGNORECASE
)
"""Matches a header with a version, even if it is invalid."""
_HEADER_HINT: Final = "begin the file with the lines ---, version: 3 (a number) and ---, or with none of them"
_DOLLAR_HINT: Final = "write $$ for a dollar sign"


class InvalidPromptError(QueenrightError):
    """Raised at the start when a prompt file cannot be used."""

    def __init__(self, name: str, file: Path, reason: str) -> None:
        super().__init__(f"judging.{name}.prompt: {file}: {reason}")
        self.file = file


@dataclass(frozen=True, slots=True)
class Prompt:
    """
    A rendered system prompt.

    Args:
        name: The role: ``judge``, ``queen``, ``escalation`` or ``chat``.
        version: The version in the file; 0 if it has none.
    """

    name: str
    version: int
    text: str

    @property
    def id(self) -> str:
        """The name, the version and a hash of the text, such as ``judge@3+ab12cd34``."""
        return f"{self.name}@{self.version}+{sha256(self.text.encode()).hexdigest()[:8]}"


def judge_prompt(settings: HealthSettings, file: Path | None = None) -> Prompt:
    """
    Return the judge's system prompt.

    Raises:
        InvalidPromptError: The file cannot be used.
    """
    bands = settings.bands
    values = {
        "warning": bands.warning,
        "medium": bands.medium,
        "high": bands.high,
        "critical": bands.critical,
        "below_medium": bands.medium - 1,
        "below_high": bands.high - 1,
        "below_critical": bands.critical - 1,
        "stall_minutes": f"{settings.stall.idle_seconds / 60:g}",
    }
    return load_prompt("judge", values, file)


def queen_prompt(file: Path | None = None) -> Prompt:
    """
    Return the queen's system prompt.

    Raises:
        InvalidPromptError: The file cannot be used.
    """
    values = {
        "dismiss_below": ticket_policy.DISMISS_LOW_BELOW,
        "intervene_steps": ticket_policy.INTERVENE_STEPS,
        "intervene_minutes": f"{ticket_policy.INTERVENE_STALL_MINUTES:g}",
    }
    return load_prompt("queen", values, file)


def escalation_prompt() -> Prompt:
    """Return the queen's system prompt for deciding escalations."""
    values = {
        "more_times": escalation_policy.MAX_EXTENSIONS,
        "more_minutes": escalation_policy.MAX_EXTRA_MINUTES,
    }
    return load_prompt("escalation", values)


def chat_prompt() -> Prompt:
    """Return the queen's system prompt for the operator chat."""
    return load_prompt("chat", {})


def load_prompt(name: str, values: Mapping[str, object], file: Path | None = None) -> Prompt:
    """
    Return a rendered prompt.

    Args:
        name: The role. The built-in text is ``prompts/{name}.md``.
        values: The values of the placeholders (``$word``).

    Raises:
        InvalidPromptError: The file cannot be read, is empty, or has an invalid header or placeholder.
    """
    if file is None:
        text = (resources.files("queenright.judge") / "prompts" / f"{name}.md").read_text(encoding="utf-8")
    else:
        text = _validate_text(name, file, values)
    front = _FRONT_MATTER.match(text)
    template = Template(text[front.end() :] if front else text)
    return Prompt(name, int(front[1]) if front else 0, template.substitute(values))


def _validate_text(name: str, file: Path, values: Mapping[str, object]) -> str:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidPromptError(name, file, f"it cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidPromptError(name, file, "it is not UTF-8") from error
    front = _FRONT_MATTER.match(text)
    header = _HEADER.match(text) if front is None else None
    if header is not None:
        fault = "its header has no end, or more than a version"
        if not re.fullmatch(r"\d{1,9}", header[1]):
            fault = f"its version is {header[1][:40]!r}"
        raise InvalidPromptError(name, file, f"{fault}; {_HEADER_HINT}")
    template = Template(text)
    if not _FRONT_MATTER.sub("", text).strip():
        raise InvalidPromptError(name, file, "it is empty")
    if not template.is_valid():
        raise InvalidPromptError(name, file, f"it has a $ without a placeholder; {_DOLLAR_HINT}")
    unknown = [f"${word}" for word in template.get_identifiers() if word not in values]
    if unknown:
        placeholders = ", ".join(f"${word}" for word in values)
        raise InvalidPromptError(
            name, file, f"unknown placeholder {', '.join(unknown)}; known: {placeholders}; {_DOLLAR_HINT}"
        )
    return text
