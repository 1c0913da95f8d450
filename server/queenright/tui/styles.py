"""Symbols and colours of states and severities. Symbols are unambiguous without colour."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.text import Text

from queenright.tui.event_lines import EventLine

DIM: Final = "#8e94a3"
"""Colour of secondary text."""

_STYLES: Final[dict[str, tuple[str, str]]] = {
    # States of health.
    "healthy": ("●", "#73bf69"),
    "degraded": ("◐", "#f2cc0c"),
    "stuck": ("■", "#ff9830"),
    "failing": ("✖", "#f2495c"),
    # Outcomes.
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
    # Actors and actions.
    "queen": ("♛", "#ca95e5"),
    "ticket": ("▲", "#ff9830"),
    "page": ("‼", "#f2495c"),
    "act": ("»", "#6e9fff"),
    "info": (" ", ""),
}
_HEIGHTS: Final = {"healthy": "▁", "degraded": "▃", "stuck": "▅", "failing": "▇", "terminated": "_"}


def get_symbol(kind: str) -> str:
    """Return the symbol of a kind: a state, a severity, an outcome, an actor."""
    return _STYLES.get(kind, (" ", ""))[0]


def get_colour(kind: str) -> str:
    """Return the colour of a kind; an empty string for none."""
    return _STYLES.get(kind, (" ", ""))[1]


def make_label(kind: str, *, as_of: str = "") -> Text:
    """Return a kind with its symbol and colour, or with those of ``as_of``: ``■ stuck``, ``✖ failed``."""
    return style_text(f"{get_symbol(as_of or kind)} {kind.replace('_', ' ')}", get_colour(as_of or kind))


def style_text(text: str, style: str) -> Text:
    """Return text in a style. Widgets drop the style of a whole text, but keep that of its parts."""
    return Text.assemble((text, style))


def render_line(line: EventLine) -> Text:
    """Return an event line as styled text."""
    kind = get_colour(line.kind)
    return Text.assemble((f"{line.time} ", DIM), (f"{get_symbol(line.kind)} ", kind), (line.text, kind))


def render_states(states: Sequence[tuple[float, str]], since: float, until: float, width: int) -> Text:
    """
    Return a worker's states over time as bars, higher is worse: ``▁▁▃▅▅▁``; a dot where it is unknown.

    Args:
        states: Start time of each state, oldest first.
        since: Start of the bar chart, in seconds since the epoch.
        until: End of the bar chart.
        width: Width in characters.
    """
    bars = Text()
    step = (until - since) / max(width, 1)
    for index in range(width):
        state = _find_worst_between(states, since + index * step, since + (index + 1) * step)
        bars.append(_HEIGHTS.get(state, "·"), style=get_colour(state))
    return bars


def _find_worst_between(states: Sequence[tuple[float, str]], since: float, until: float) -> str:
    """Return the worst state in a span, so that short states stay visible."""
    initial_states = [state for at, state in states if at <= since][-1:]
    return _find_worst((*initial_states, *(state for at, state in states if since < at < until)))


def _find_worst(states: Iterable[str]) -> str:
    order = list(_HEIGHTS)
    return max(states, key=order.index, default="")
