"""Text for the terminal: control characters, columns, times."""

from __future__ import annotations

import time
from typing import Final

from queenright.instrumentation.control_characters import CONTROL_CHARACTERS

_CONTROL: Final = dict.fromkeys(CONTROL_CHARACTERS, " ")
_CONTROL_ON_LINES: Final = {number: None for number in CONTROL_CHARACTERS if chr(number) not in "\n\t"}
_MAX_LINE_LENGTH: Final = 100


def to_single_line(text: str) -> str:
    """Return text that cannot move the cursor or break the line."""
    return text.translate(_CONTROL).rstrip()


def strip_control(text: str) -> str:
    """Return text without control characters, except new lines and tabs."""
    return text.translate(_CONTROL_ON_LINES)


def fit(text: str, width: int) -> str:
    """Return text padded, or truncated with an ellipsis, to ``width`` characters."""
    return (text if len(text) <= width else f"{text[: width - 1]}…").ljust(width)


def truncate_start(text: str, width: int) -> str:
    """Return the last ``width`` characters of an id, behind an ellipsis: its end tells it from others."""
    return text if len(text) <= width else f"…{text[len(text) - width + 1 :]}"


def format_worker_cells(agent_id: str, session_id: str, width: int = 24) -> str:
    """Return agent and session as columns; commands accept the end of a session's id."""
    return f"{fit(to_single_line(agent_id), width)} {truncate_start(to_single_line(session_id), 14):<14}"


def truncate(text: str) -> str:
    """Return text on one line of at most 100 characters."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_LINE_LENGTH else f"{line[: _MAX_LINE_LENGTH - 1]}…"


def get_outcome_name(outcome: str | None) -> str:
    """Return the outcome of an intervention in words."""
    return "not carried out" if outcome == "unreachable" else (outcome or "unknown").replace("_", " ")


def format_local_time(moment: float) -> str:
    """Return seconds since the epoch as local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
