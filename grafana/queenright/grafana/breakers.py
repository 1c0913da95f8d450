"""The dashboard of circuit breakers: what is cut off, why, and until when?"""

from __future__ import annotations

from queenright.grafana import panels
from queenright.grafana.links import breaker_page, panel_link
from queenright.grafana.panels import AnyPanel, Query, Row
from queenright.grafana.promql import (
    SHOWN,
    age_by,
    counts_by,
    highest_by,
    increase_by,
    select,
    total_by,
    while_known,
)
from queenright.grafana.states import BREAKER_STATES, GREEN, breaker_rank, breaker_words
from queenright.grafana.tables import Column, rows_by, with_action
from queenright.grafana.thresholds import Thresholds
from queenright.instrumentation import names

TITLE = "Circuit Breakers"
QUESTION = "What is cut off from what, and until when?"

_NONE = -1
"""Stands for no breaker at all, as long as the service answers that would know of one."""
_COLOURS = tuple((state, colour) for state, (_, colour) in BREAKER_STATES.items())


def rows(at: Thresholds) -> list[Row]:
    """Return the panels, with lines at these thresholds."""
    return [Row("What is cut off?", _now(at)), Row("How it came to that", _past(at))]


def _now(at: Thresholds) -> list[AnyPanel]:
    opens = highest_by("breaker", names.CIRCUIT_BREAKER_HALF_OPEN)
    return [
        panels.numbers(
            "Breakers by state",
            "How many breakers are closed (calls pass), half-open (one is tried) and open (none passes). "
            "Past 200, only those that are not closed are known here.",
            "none",
            Query(
                f"{total_by('state', names.CIRCUIT_BREAKER_STATE)}"
                f" or on () {while_known(0, names.AGENTS, label='state', word='open')}",
                "{{state}}",
            ),
            size=(12, 4),
            colours=_COLOURS[1:],
        ).links([panel_link("All breakers; reset one", "breakers")]),
        panels.numbers(
            "Opened",
            "How often a breaker opened in the time shown.",
            "short",
            Query(increase_by("", names.CIRCUIT_BREAKER_TRANSITIONS, 'to="open"', window=SHOWN), "times"),
            size=(6, 4),
        ),
        panels.numbers(
            "Next one tries again in",
            "Time until the first of the open breakers lets a call through.",
            "s",
            Query(
                f"clamp_min(min by () ({select(names.CIRCUIT_BREAKER_HALF_OPEN)}) - time(), 0)"
                f" or {while_known(_NONE, names.AGENTS)}",
                "from now",
            ),
            size=(6, 4),
            words=[(_NONE, "none is open", GREEN)],
        ),
        rows_by(
            "breaker",
            "Breakers",
            "One row a breaker, open ones first: its name (kind, agent, target), how many failures in a row "
            "it counts, and, while it is open, how long until it lets one call through. "
            "The last column leads to the button that resets it.",
            Column("State", breaker_rank(), words=breaker_words()),
            Column(
                "Failures in a row",
                highest_by("breaker", names.CIRCUIT_BREAKER_FAILURES),
                lines=at.breaker_failures,
            ),
            Column("Tries again in", f"clamp_min({opens} - time(), 0)", "s"),
            Column("Opened, times", _opened(), "short"),
            links=[breaker_page("Why, and reset it")],
            action=Column(
                "Quick action",
                with_action(highest_by("breaker", names.CIRCUIT_BREAKER_STATE), "reset", "breaker"),
                links=[breaker_page("Reset it")],
            ),
            size=(24, 9),
        ),
    ]


def _opened() -> str:
    return increase_by("breaker", names.CIRCUIT_BREAKER_TRANSITIONS, 'to="open"', window=SHOWN)


def _past(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.state_history(
            "States",
            "Each breaker over time. One that opens again and again: what it stands before is still broken.",
            Query(breaker_rank(), "{{breaker}}"),
            words=breaker_words(),
            size=(24, 8),
        ),
        panels.time_series(
            "Failures in a row",
            "What each breaker counts, if any. The line is where one with the default settings opens.",
            "none",
            Query(f"{highest_by('breaker', names.CIRCUIT_BREAKER_FAILURES)} > 0", "{{breaker}}"),
            lines=at.breaker_failures,
        ),
        panels.counts(
            "Changes of state",
            "Breakers that opened, tried again and closed.",
            Query(counts_by("to", names.CIRCUIT_BREAKER_TRANSITIONS), "{{to}}"),
            colours=[("closed", "green"), *_COLOURS[1:]],
        ),
        panels.time_series(
            "Time until they try again",
            "Of each open breaker, how long until it lets a call through. At 0 it waits for that call.",
            "s",
            Query(f"clamp_min(-({age_by('breaker', names.CIRCUIT_BREAKER_HALF_OPEN)}), 0)", "{{breaker}}"),
        ),
    ]
