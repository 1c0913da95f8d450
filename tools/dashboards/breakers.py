"""The Circuit Breakers dashboard."""

from __future__ import annotations

from queenright.grafana.export import Thresholds
from queenright.instrumentation import names
from tools.dashboards import panels
from tools.dashboards.links import breaker_page, panel_link
from tools.dashboards.panels import AnyPanel, Query, Row
from tools.dashboards.promql import (
    SHOWN,
    age_by,
    counts_by,
    highest_by,
    increase_by,
    select,
    total_by,
    while_known,
)
from tools.dashboards.states import BREAKER_STATES, GREEN, breaker_rank, breaker_words
from tools.dashboards.tables import Column, rows_by, with_action

TITLE = "Circuit Breakers"
QUESTION = "Which circuit breakers are open, and until when?"

_NONE = -1
"""Stands for "no open breaker" while the service is up."""
_COLOURS = tuple((state, colour) for state, (_, colour) in BREAKER_STATES.items())


def rows(at: Thresholds) -> list[Row]:
    """Return the panels, with lines at these thresholds."""
    return [Row("Overview", _current_panels(at)), Row("History", _history_panels(at))]


def _current_panels(at: Thresholds) -> list[AnyPanel]:
    opens = highest_by("breaker", names.CIRCUIT_BREAKER_HALF_OPEN)
    return [
        panels.numbers(
            "Breakers by state",
            "Breakers that are closed (calls pass), half-open (one trial call) and open (calls fail fast). "
            "If there are more than 200 breakers, closed breakers are not counted.",
            "none",
            Query(
                f"{total_by('state', names.CIRCUIT_BREAKER_STATE)}"
                f" or on () {while_known(0, names.AGENTS, label='state', word='open')}",
                "{{state}}",
            ),
            size=(12, 4),
            colours=_COLOURS[1:],
        ).links([panel_link("Circuit breakers", "breakers")]),
        panels.numbers(
            "Opened",
            "Number of times that a breaker opened in the time range.",
            "short",
            Query(increase_by("", names.CIRCUIT_BREAKER_TRANSITIONS, 'to="open"', window=SHOWN), "times"),
            size=(6, 4),
        ),
        panels.numbers(
            "Next trial call in",
            "Time until the first open breaker allows a trial call.",
            "s",
            Query(
                f"clamp_min(min by () ({select(names.CIRCUIT_BREAKER_HALF_OPEN)}) - time(), 0)"
                f" or {while_known(_NONE, names.AGENTS)}",
                "from now",
            ),
            size=(6, 4),
            words=[(_NONE, "no open breaker", GREEN)],
        ),
        rows_by(
            "breaker",
            "Breakers",
            "One row per breaker, open ones first: its name (kind, agent, target), its consecutive failures, "
            "and, while it is open, the time until its next trial call. The last column links to its reset.",
            Column("State", breaker_rank(), words=breaker_words()),
            Column(
                "Consecutive failures",
                highest_by("breaker", names.CIRCUIT_BREAKER_FAILURES),
                lines=at.breaker_failures,
            ),
            Column("Next trial in", f"clamp_min({opens} - time(), 0)", "s"),
            Column(
                "Times opened",
                increase_by("breaker", names.CIRCUIT_BREAKER_TRANSITIONS, 'to="open"', window=SHOWN),
                "short",
            ),
            links=[breaker_page("Details and reset")],
            action=Column(
                "Quick action",
                with_action(highest_by("breaker", names.CIRCUIT_BREAKER_STATE), "reset", "breaker"),
                links=[breaker_page("Reset")],
            ),
            size=(24, 9),
        ),
    ]


def _history_panels(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.state_history(
            "Breaker states",
            "State of each breaker over time. If one keeps opening, what it protects still fails.",
            Query(breaker_rank(), "{{breaker}}"),
            words=breaker_words(),
            size=(24, 8),
        ),
        panels.time_series(
            "Consecutive failures",
            "Consecutive failures per breaker. The line is the default threshold at which a breaker opens.",
            "none",
            Query(f"{highest_by('breaker', names.CIRCUIT_BREAKER_FAILURES)} > 0", "{{breaker}}"),
            lines=at.breaker_failures,
        ),
        panels.counts(
            "State changes",
            "Breakers that opened, went half-open and closed.",
            Query(counts_by("to", names.CIRCUIT_BREAKER_TRANSITIONS), "{{to}}"),
            colours=[("closed", "green"), *_COLOURS[1:]],
        ),
        panels.time_series(
            "Time until the next trial call",
            "Time until each open breaker allows a trial call. At 0 it waits for that call.",
            "s",
            Query(f"clamp_min(-({age_by('breaker', names.CIRCUIT_BREAKER_HALF_OPEN)}), 0)", "{{breaker}}"),
        ),
    ]
