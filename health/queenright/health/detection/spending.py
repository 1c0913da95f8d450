"""Spending limits: today's spending, and the finding about a worker near a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from queenright.health.findings import Finding, FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.health.vitals.vital_facts import SpentToday
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.instrumentation.money import format_dollars

DAY: Final = 86_400.0
"""Seconds. Days begin at midnight, UTC."""
_WARN_AT: Final = 0.8
"""Share of a limit at which a warning ticket opens."""


SpentElsewhere = Callable[[str, int], tuple[float, float]]
"""Returns the US dollars that other services counted on a day: for an agent, and for all agents."""


class DailySpending:
    """
    Sums the cost of the current day's model calls. Events of earlier days are ignored.

    Args:
        spent_elsewhere: Returns the spending in other parts of the fleet; None if the fleet has no other
            parts.

    Attributes:
        changes: The agents whose changed sums must be sent to other services.
    """

    def __init__(self, spent_elsewhere: SpentElsewhere | None = None) -> None:
        self._spent_elsewhere = spent_elsewhere
        self.changes: set[str] = set()
        self._day = 0
        self._fleet = 0.0
        self._agents: dict[str, float] = {}

    def add(self, agent: str, dollars: float, at: float) -> SpentToday:
        """Add an agent's cost at ``at``, in seconds since the epoch. Return the sums of the day."""
        day = int(at // DAY)
        if day > self._day:
            self._day, self._fleet = day, 0.0
            self._agents.clear()
        if day == self._day:
            self._fleet += dollars
            self._agents[agent] = self._agents.get(agent, 0.0) + dollars
        by_agent, by_all = self._agents.get(agent, 0.0), self._fleet
        if self._spent_elsewhere is not None:
            self.changes.add(agent)
            agent_elsewhere, fleet_elsewhere = self._spent_elsewhere(agent, self._day)
            by_agent, by_all = by_agent + agent_elsewhere, by_all + fleet_elsewhere
        return SpentToday(self._day, by_agent, by_all)

    def restore(self, day: int, fleet: float, agents: dict[str, float]) -> None:
        """Continue with the sums of a former process, which may not have sent them to other services."""
        self._day, self._fleet, self._agents = day, fleet, agents
        if self._spent_elsewhere is not None:
            self.changes |= agents.keys()

    def take_changed(self) -> tuple[int, dict[str, float]]:
        """Return the day, and the sums of the agents whose sums have changed since the last call."""
        sums = {agent: self._agents.get(agent, 0.0) for agent in self.changes}
        self.changes.clear()
        return self._day, sums

    def rename(self, old: str, new: str, dollars: float) -> None:
        """Move the cost of a run whose agent was renamed."""
        if dollars := min(dollars, self._agents.get(old, 0.0)):
            self._agents[old] -= dollars
            self._agents[new] = self._agents.get(new, 0.0) + dollars
            if self._spent_elsewhere is not None:
                self.changes |= {old, new}


def detect_spending(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker that is at or near a spending limit and continues to spend."""
    limits = settings.spending
    if not limits.is_on:
        return None
    near_limits = [row for row in _list_spending(v, settings, now) if row[0] >= _WARN_AT * row[1]]
    if not near_limits:
        return None
    amount, limit, spender, since = max(near_limits, key=lambda row: row[0] / row[1])
    note = f"; {v.unpriced_tokens:,} tokens of this run have no known price" if v.unpriced_tokens else ""
    evidence = f"{format_dollars(amount)} of {format_dollars(limit)} spent {spender}{note}"
    severity = Severity.HIGH if amount >= limit else Severity.MEDIUM
    return Finding.of(FindingKind.SPENDING, severity, evidence, since)


def _list_spending(
    v: VitalSigns, settings: HealthSettings, now: float
) -> Iterator[tuple[float, float, str, float]]:
    """Yield each limit: the spending and the limit in US dollars, who spends, and when the spending began."""
    limits, today = settings.spending, v.spent_today
    if limits.run_usd is not None and v.cost_usd is not None:
        yield v.cost_usd, limits.run_usd, "by this run", v.started_at
    if today is None or int(now // DAY) != today.day:
        return
    if limits.agent_day_usd is not None:
        yield today.agent, limits.agent_day_usd, "by this agent today", today.day * DAY
    if limits.day_usd is not None:
        yield today.fleet, limits.day_usd, "by all agents today", today.day * DAY


def find_reached_limits(v: VitalSigns, settings: HealthSettings, now: float) -> dict[str, str]:
    """
    Return descriptions of the spending limits that a worker has reached, by a key that is unique per limit.
    """
    limits: dict[str, str] = {}
    for amount, limit, spender, since in _list_spending(v, settings, now):
        if amount >= limit:
            limits[f"{spender} {since}"] = (
                f"{format_dollars(amount)} of {format_dollars(limit)} spent {spender}"
            )
    return limits
