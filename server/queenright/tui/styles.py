"""How states and severities look: a sign and a colour each. The sign says it all; the colour helps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.text import Text

from queenright.tui.event_lines import Line

DIM: Final = "#8e94a3"
"""What is beside the point."""

_LOOKS: Final[dict[str, tuple[str, str]]] = {
    # States of health.
    "healthy": ("●", "#73bf69"),
    "degraded": ("◐", "#f2cc0c"),
    "stuck": ("■", "#ff9830"),
    "failing": ("✖", "#f2495c"),
    # And outcomes: "terminated" is one, too.
    **dict.fromkeys(("terminated", "completed", "cancelled", "unknown"), ("○", DIM)),
    "failed": ("✖", DIM),
    # Severities of tickets.
    "low": ("·", "#6fd0d8"),
    "medium": ("▪", "#f2cc0c"),
    "high": ("▲", "#ff9830"),
    "critical": ("‼", "#f2495c"),
    # Circuit breakers.
    "closed": ("●", "#73bf69"),
    "half_open": ("◐", "#f2cc0c"),
    "open": ("✖", "#f2495c"),
    # What is said and done.
    "queen": ("♛", "#ca95e5"),
    "act": ("»", "#6e9fff"),
    "info": (" ", ""),
}
_HEIGHTS: Final = {"healthy": "▁", "degraded": "▃", "stuck": "▅", "failing": "▇", "terminated": "_"}


def sign(kind: str) -> str:
    """Return the sign of a state, a severity, or another kind."""
    return _LOOKS.get(kind, (" ", ""))[0]


def colour(kind: str) -> str:
    """Return its colour, as rich names it; an empty string for none."""
    return _LOOKS.get(kind, (" ", ""))[1]


def word(kind: str) -> Text:
    """Return it with its sign, in its colour: ``■ stuck``."""
    return styled(f"{sign(kind)} {kind.replace('_', ' ')}", colour(kind))


def styled(text: str, style: str) -> Text:
    """Return a text in a style. (A widget forgets the style of a whole text, but not of its parts.)"""
    return Text.assemble((text, style))


def line(one: Line) -> Text:
    """Return a line of a feed or stream."""
    kind = colour(one.kind)
    return Text.assemble((f"{one.time} ", DIM), (f"{sign(one.kind)} ", kind), (one.text, kind))


def history(states: Sequence[tuple[float, str]], since: float, until: float, width: int) -> Text:
    """
    Return in which state a worker was, the worse the higher: ``▁▁▃▅▅▁``; a dot where it is not known.

    Args:
        states: When each state began, oldest first.
        since: Where the line begins, in seconds since the epoch.
        until: Where it ends.
        width: Characters of the line.
    """
    shown = Text()
    step = (until - since) / max(width, 1)
    for place in range(width):
        state = _worst_in(states, since + place * step, since + (place + 1) * step)
        shown.append(_HEIGHTS.get(state, "·"), style=colour(state))
    return shown


def _worst_in(states: Sequence[tuple[float, str]], since: float, until: float) -> str:
    """Return the worst state of a span: what was short must be seen, too."""
    before = [state for at, state in states if at <= since][-1:]
    return _worst((*before, *(state for at, state in states if since < at < until)))


def _worst(states: Iterable[str]) -> str:
    order = list(_HEIGHTS)
    return max(states, key=order.index, default="")
