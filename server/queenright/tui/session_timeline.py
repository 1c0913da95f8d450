"""The timeline of one session, without widgets: its steps as lines, and its open work."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

from queenright.api.agents import Finding
from queenright.api.steps import Step, Steps
from queenright.instrumentation.durations import format_duration
from queenright.tui.event_lines import EventLine
from queenright.tui.formatting import clip, format_clock_time, format_short_number

_MAX_LINES: Final = 1_000
_MAX_LENGTH: Final = 300
_PRECISE_SECONDS: Final = 10.0
_VERDICTS: Final = {"ACCEPT": "healthy", "CONTINUE": "info", "": "info"}


class SessionTimeline:
    """
    The newest steps of a session.

    Attributes:
        lines: The steps, in the order in which they ended.
        open: Current activity of the worker.
        last: Cursor of the last step in the log; None if unknown.
    """

    def __init__(self) -> None:
        self.lines: deque[EventLine] = deque(maxlen=_MAX_LINES)
        self.open: list[Step] = []
        self.last: str | None = None

    def clear(self) -> None:
        """Forget all steps."""
        self.lines.clear()
        self.last = None

    def add(self, page: Steps) -> None:
        """Add the page after ``last``; the newest page if nothing is known yet."""
        self.lines.extend(make_step_line(step) for step in page.items if step.phase != "open")
        self.open, self.last = page.open, page.last or self.last


def make_step_line(step: Step) -> EventLine:
    """Return a step as a line of a timeline."""
    kind, text = _describe_step(step)
    if step.phase == "failed":
        kind = "failing"
    line = ". ".join(part for part in (text, step.text) if part)
    return EventLine(format_clock_time(step.at), kind, clip(line, _MAX_LENGTH))


def _describe_step(step: Step) -> tuple[str, str]:
    duration = (
        "" if step.ended_at is None else f" in {_format_step_duration(step.ended_at - step.started_at)}"
    )
    detail = f" {step.detail}" if step.detail else ""
    match step.kind:
        case "turn" if step.type.startswith("step_"):
            return _VERDICTS.get(step.detail, "degraded"), f"{step.name}{detail}"
        case "turn":
            tokens = format_short_number(step.tokens_in + step.tokens_out)
            return "info", f"{step.name or 'model'}{detail}, {tokens} tokens{duration}"
        case "tool":
            return "info", f"{step.name}{detail}{duration}"
        case "wait":
            return "info", f"waited for {step.name.replace('_', ' ')}{duration.replace(' in ', ' ')}"
        case "finding":
            return step.severity, f"{step.name.replace('_', ' ')}{detail}"
        case "state":
            return step.name, f"{step.name}{detail}"
        case "started" | "ended":
            return "act", f"session {step.name if step.kind == 'ended' else 'started'}{detail}"
        case "checkpoint":
            return "info", "checkpoint saved"
        case "intervention":
            return "act", "" if step.text else step.name.replace("_", " ")
        case _:
            return step.severity or "info", "" if step.text else step.name.replace("_", " ")


def _format_step_duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < _PRECISE_SECONDS else format_duration(seconds)


def describe_shadow(finding: Finding, now: float) -> str:
    """Return a finding of a detector in shadow mode: ``shadow, grinding for 2 min: 82 tool calls``."""
    kind = finding.kind.replace("_", " ")
    return f"shadow, {kind} for {format_duration(now - finding.since)}: {finding.evidence}"


def describe_open(step: Step, now: float) -> str:
    """Return what a worker does now, since when, and when it counts as stalled: ``search, 40 s of 2 min``."""
    limit = "" if step.limit_seconds is None else f" of {format_duration(step.limit_seconds)}"
    stall_text = ""
    if step.fires_at is not None:
        # A step that started ahead of this machine's clock has its whole limit left.
        seconds_left = min(step.fires_at - now, step.limit_seconds or math.inf)
        stall_text = f", stalls in {format_duration(seconds_left)}" if seconds_left > 0 else ", stalled"
    name = step.name.replace("_", " ") or "model"
    activity = f"waiting for {name}" if step.kind == "wait" else name
    return f"{activity}, {format_duration(now - step.started_at)}{limit}{stall_text}"
