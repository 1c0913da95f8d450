"""What concerns many workers at once, and what was done to them: for whoever is on call."""

from __future__ import annotations

from typing import Final

from queenright.alerting.rules import burn
from queenright.alerting.rules.promql import duration, select
from queenright.alerting.rules.recording import AGENTS
from queenright.alerting.rules.rule import Alert, Group, Links, Selectors
from queenright.health.settings import HealthSettings
from queenright.instrumentation import names
from queenright.instrumentation.names import SOURCE_MONITOR

FILE: Final = "fleet.yml"


def groups(settings: HealthSettings, selectors: Selectors, links: Links) -> tuple[Group, ...]:
    """Return the alerts about the fleet, its objectives, and what was done to workers."""
    fleet = (_degraded(settings, selectors),)
    acting = (_breaker(settings, selectors), _given_up(selectors), _from_start(selectors))
    return (
        Group(name="queenright-fleet", file=FILE, links=links, rules=fleet),
        Group(name="queenright-slo", file=FILE, links=links, rules=burn.alerts(settings, selectors)),
        Group(name="queenright-acting", file=FILE, links=links, rules=acting),
    )


def _degraded(settings: HealthSettings, selectors: Selectors) -> Alert:
    share, minimum = settings.rules.degraded_share, settings.rules.degraded_minimum_agents
    unpaged = select(selectors, names.UNPAGED_AGENTS)
    return Alert(
        name="QueenrightFleetDegraded",
        why="What a ticket has paged somebody about is left out: one trouble of many is one page. This is "
        "for what no ticket was critical enough for, or came too late for. Below "
        f"{minimum} agents they speak for themselves.",
        expr=f"sum({unpaged}) / {AGENTS} >= {share:g}\nand\n{AGENTS} >= {minimum}",
        for_="5m",
        keep_firing_for="5m",
        severity="critical",
        source=SOURCE_MONITOR,
        summary=f"{'Most' if share >= 0.5 else 'Much'} of the fleet is in trouble, and nobody was paged.",
        description="{{ $value | humanizePercentage }} of the agents are degraded, stuck or failing, and no "
        "ticket has paged anybody about them: look for one cause first.",
        threshold=f"≥ {share:.0%} of at least {minimum} agents (`health_monitoring.rules.degraded_share`, "
        "`.degraded_minimum_agents`) that no ticket has paged anybody about",
        reason="when many fail at once they share a cause: a provider, a tool, a network, a release",
        dashboard="queenright-fleet",
    )


def _breaker(settings: HealthSettings, selectors: Selectors) -> Alert:
    timeout = settings.circuit_breaker.default.recovery_timeout_seconds
    window = duration(5 * timeout)
    closed = select(selectors, names.CIRCUIT_BREAKER_STATE, 'state="closed"')
    opened = select(selectors, names.CIRCUIT_BREAKER_STATE, 'state="open"')
    any_state = select(selectors, names.CIRCUIT_BREAKER_STATE)
    return Alert(
        name="QueenrightCircuitBreakerOpen",
        why="It goes between open and half open meanwhile, and one that closes for a moment between failures "
        "counts too. One that nobody calls any more stays half open, which after an hour is no news. The "
        "last line: one that is gone leaves samples behind; a restart of the service within a minute ends "
        "nothing.",
        expr=f"max by (breaker) (avg_over_time({closed}[{window}])) <= 0.5\n"
        "and\n"
        f"max by (breaker) (max_over_time({opened}[1h])) == 1\n"
        "and\n"
        f"max by (breaker) (last_over_time({any_state}[1m])) == 1",
        for_=duration(3 * timeout),
        severity=settings.alerting.circuit_breaker_open.severity,
        source=SOURCE_MONITOR,
        summary="A circuit breaker stays open.",
        description=f"Breaker {{{{ $labels.breaker }}}} was closed for {{{{ $value | humanizePercentage }}}} "
        f"of the last {_minutes(5 * timeout)}: what is behind it fails, and calls are refused. Why: "
        "queenright breakers list --open.",
        threshold=f"not closed for half of {window}, and for {duration(3 * timeout)} more: five and three "
        "times `health_monitoring.circuit_breaker.default.recovery_timeout_seconds`",
        reason="what heals at its first probes is nobody's business; this did not",
        dashboard="queenright-breakers",
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g} minutes"


def _given_up(selectors: Selectors) -> Alert:
    given_up = select(selectors, names.RECOVERIES, 'outcome="exhausted"')
    return Alert(
        name="QueenrightRecoveryFailed",
        why="A warning: the agent's own ticket (cause recovery_failed, critical) is what pages.",
        expr=f"sum(increase({given_up}[1h])) > 0",
        for_="15s",
        severity="warning",
        source=SOURCE_MONITOR,
        summary="Work was given up: it could not be brought back.",
        description='Tasks given up in the last hour: {{ $value | printf "%.0f" }}. Which, and why: '
        "queenright recoveries --json, where exhausted is true, or the status page. Each agent has a "
        "critical ticket about it: queenright tickets.",
        threshold="1 task within an hour, after `health_monitoring.recovery.max_attempts_per_task` attempts",
        reason="nothing more is tried by itself: somebody has to finish the work or let it go",
        dashboard="queenright-interventions",
    )


def _from_start(selectors: Selectors) -> Alert:
    again = select(selectors, names.RECOVERIES, 'outcome="from_start"')
    return Alert(
        name="QueenrightTaskRestartedFromStart",
        why="The work goes on, so it has no ticket: this is how a human hears of it.",
        expr=f"sum(increase({again}[1h])) > 0",
        for_="15s",
        severity="warning",
        source=SOURCE_MONITOR,
        summary="Work began again from its start: it had no valid checkpoint.",
        description='Tasks begun again in the last hour: {{ $value | printf "%.0f" }}. What they had done '
        "may be done twice. Which: queenright recoveries --json, where from_start is true, or the status "
        "page; what led there: queenright interventions.",
        threshold="1 task within an hour",
        reason="what a task did outside (mails, tickets, payments) may happen twice",
        dashboard="queenright-interventions",
    )
