"""
The texts that the rules write for the judge and the queen, short enough for a phone.

For each kind of finding, there is a cause (which worker, since when), an impact, and an advice.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from shlex import quote
from typing import Final

from pydantic import TypeAdapter

from queenright.health.findings import FindingKind
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.durations import format_duration

_MAX_LENGTH: Final = 240


@dataclass(frozen=True, slots=True)
class _Sentences:
    cause: str
    """The predicate of a sentence that begins with the agent's name. The evidence follows it."""
    impact: str
    advice: str


_SENTENCES: Final = TypeAdapter(dict[FindingKind, _Sentences]).validate_python(
    tomllib.loads((resources.files("queenright.judge") / "sentences.toml").read_text(encoding="utf-8"))
)


def cause(
    kind: FindingKind,
    *,
    agent: str,
    node: str = "",
    evidence: str = "",
    since: float | None = None,
    now: float | None = None,
) -> str:
    """
    Return the cause in one sentence: worker, node, time and the detector's evidence.

    Args:
        since: When the condition began, in seconds since the epoch.
        now: The time of the text. If the condition began on another day, the date is included.
    """
    node_text = f" (node {node})" if node else ""
    since_text = f" since {clock_time(since, now)}" if since is not None else ""
    evidence_text = one_line(evidence).rstrip(".")
    return f"{agent}{node_text} {_SENTENCES[kind].cause}{since_text}" + (
        f": {evidence_text}." if evidence_text else "."
    )


def impact(kind: FindingKind) -> str:
    """Return the impact of a kind of finding."""
    return _SENTENCES[kind].impact


def advice(kind: FindingKind, agent: str, session: str) -> str:
    """Return the advice. Its commands name the worker's agent and session."""
    text = _SENTENCES[kind].advice
    return text.replace("{agent}", quote(agent)).replace("{session}", quote(session))


def numbers(*, bad_steps: int, stall_minutes: float | None, occurrences: int = 1) -> str:
    """Return the numbers of a ticket as text, or an empty string if there are none."""
    parts = []
    if bad_steps:
        parts.append(f"{format_count(bad_steps, 'bad step')} since the last accepted one")
    if stall_minutes is not None and stall_minutes >= 1:
        parts.append(f"last activity {format_duration(stall_minutes * 60)} ago")
    if occurrences > 1:
        parts.append(f"seen {occurrences:,} times")
    return ", ".join(parts)


def one_line(text: str, limit: int = _MAX_LENGTH) -> str:
    """Return ``text`` on one line, clipped at its end."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def clock_time(at: float, now: float | None = None, *, seconds: bool = False) -> str:
    """Return a time of day in UTC, with the date if it is not the day of ``now``."""
    time = datetime.fromtimestamp(at, UTC)
    text = f"{time:%H:%M:%S} UTC" if seconds else f"{time:%H:%M} UTC"
    is_other_day = now is not None and datetime.fromtimestamp(now, UTC).date() != time.date()
    return f"{time:%Y-%m-%d} {text}" if is_other_day else text
