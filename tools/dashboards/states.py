"""Colours of health states, severities and outcomes, the same on every dashboard."""

from __future__ import annotations

from typing import Final

from queenright.grafana.export import BLUE, ORANGE, RED, YELLOW
from queenright.health.detection.health_state import HealthState
from queenright.health.findings import Severity
from queenright.instrumentation import names
from tools.dashboards.promql import IN_PARTITIONS, Series, select, total_by
from tools.dashboards.recorded import Recorded

GREEN, GREY, PURPLE = "green", "#8e8e8e", "purple"

STATES: dict[HealthState, tuple[int, str]] = {
    HealthState.HEALTHY: (1, GREEN),
    HealthState.DEGRADED: (2, YELLOW),
    HealthState.STUCK: (3, ORANGE),
    HealthState.FAILING: (4, RED),
}
"""Rank and colour of each health state of a running agent."""

BREAKER_STATES: dict[str, tuple[int, str]] = {
    "closed": (0, GREEN),
    "half_open": (1, YELLOW),
    "open": (2, RED),
}
"""Rank and colour of each state of a circuit breaker."""

SEVERITIES: dict[Severity, str] = {
    Severity.LOW: BLUE,
    Severity.MEDIUM: YELLOW,
    Severity.HIGH: ORANGE,
    Severity.CRITICAL: RED,
}
"""Colour of each ticket severity."""

Colours = tuple[tuple[str, str], ...]
"""Label values and their colours."""

VERDICTS: Final[Colours] = (
    ("accept", GREEN),
    ("continue", BLUE),
    ("retry", YELLOW),
    ("escalate", ORANGE),
    ("error", RED),
)
TOOL_OUTCOMES: Final[Colours] = (("ok", GREEN), ("timeout", ORANGE), ("error", RED))
FALLBACKS: Final[Colours] = (("budget", PURPLE), ("timeout", ORANGE), ("error", RED), ("invalid", YELLOW))
WITHIN: Final[Colours] = (("p50", BLUE), ("p95", YELLOW), ("p99", PURPLE))
"""Colours of lines within one panel."""
SPANS: Final[Colours] = (("5 min", BLUE), ("1 h", PURPLE))
DECISIONS: Final[Colours] = (("intervene", ORANGE), ("bypass", PURPLE), ("dismiss", GREEN))
CHECKS: Final[Colours] = (("healthy", GREEN), ("ticket", ORANGE), ("unknown", GREY))
DELIVERIES: Final[Colours] = (("delivered", GREEN), ("retried", YELLOW), ("failed", RED))
KINDS: Final[Colours] = (
    ("nudge", BLUE),
    ("escalate", YELLOW),
    ("terminate", RED),
    ("recover", GREEN),
    ("answer", PURPLE),
)
RECOVERIES: Final[Colours] = (
    ("initiated", BLUE),
    ("from_start", PURPLE),
    ("completed", GREEN),
    ("failed", ORANGE),
    ("exhausted", RED),
)
OUTCOMES: Final[Colours] = (
    ("done", GREEN),
    ("unconfirmed", BLUE),
    ("dry_run", GREY),
    ("expired", YELLOW),
    ("refused", PURPLE),
    ("unreachable", ORANGE),
    ("failed", RED),
)


def coloured_states() -> Colours:
    """Return each health state and its colour."""
    return tuple((state, colour) for state, (_, colour) in STATES.items())


def state_words() -> list[tuple[int, str, str]]:
    """Return rank, text and colour of every health state."""
    return [(rank, state, colour) for state, (rank, colour) in STATES.items()]


def breaker_words() -> list[tuple[int, str, str]]:
    """Return rank, text and colour of every breaker state."""
    return [(rank, state.replace("_", "-"), colour) for state, (rank, colour) in BREAKER_STATES.items()]


def state_rank() -> str:
    """Return the query for the rank of each agent's worst health state, as in ``STATES``."""
    return f"max by (agent) ({_state_ranks(names.AGENT_STATE)})"


def agents_by_state() -> str:
    """
    Return the query for the number of agents in each state.

    An agent with sessions in several partitions of a cluster counts once, in its worst state.
    """
    # Without the label to which `$agent` applies, because the total is also of all agents.
    ranks = _state_ranks(Recorded(names.AGENT_STATE.name), IN_PARTITIONS)
    total = total_by("state", names.AGENTS)
    return f"{total} - count by (state) (({ranks}) unless topk by (job, agent) (1, {ranks})) or {total}"


def known_agents() -> str:
    """Return the query for the number of agents; one with sessions in several partitions counts once."""
    series = select(Recorded(names.AGENT_STATE_SINCE.name), IN_PARTITIONS)
    return f"{total_by('', names.AGENTS)} - (sum by () (count by (job, agent) ({series}) - 1) or vector(0))"


def _state_ranks(metric: Series, *matchers: str) -> str:
    """Return the query for the rank of each agent's state in each service."""
    return " or ".join(
        f"{rank} * ({select(metric, _state_matcher(state), *matchers)} == 1)"
        for state, (rank, _) in STATES.items()
    )


def breaker_rank(*matchers: str) -> str:
    """Return the query for the rank of each breaker's state, as in ``BREAKER_STATES``."""
    terms = (
        f"{rank} * ({select(names.CIRCUIT_BREAKER_STATE, _state_matcher(state), *matchers)} == 1)"
        for state, (rank, _) in BREAKER_STATES.items()
    )
    return f"max by (breaker) ({' or '.join(terms)})"


def _state_matcher(state: str) -> str:
    return f'state="{state}"'
