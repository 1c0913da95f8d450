"""Alerts about the fleet and about interventions, for on-call."""

from __future__ import annotations

from typing import Final

from queenright.alerting.rules import burn
from queenright.alerting.rules.promql import IN_PARTITIONS, format_promql_duration, select
from queenright.alerting.rules.recording import AGENTS
from queenright.alerting.rules.rule import Alert, Group, Links, Selectors
from queenright.health.objectives import DEGRADED_SHARE
from queenright.health.settings import HealthSettings
from queenright.instrumentation import names

FILE: Final = "fleet.yml"
_DEGRADED_MINIMUM: Final = 5
"""Minimum number of agents. In a smaller fleet, two agents with problems could be half of it."""


def groups(settings: HealthSettings, selectors: Selectors, links: Links) -> tuple[Group, ...]:
    """Return the alerts about the fleet, its objectives, and interventions."""
    fleet = (_build_degraded_alert(selectors),)
    intervention_alerts = (
        _build_breaker_alert(settings, selectors),
        _build_recovery_failed_alert(selectors),
        _build_restart_alert(selectors),
    )
    return (
        Group(name="queenright-fleet", file=FILE, links=links, rules=fleet),
        Group(name="queenright-slo", file=FILE, links=links, rules=burn.alerts(settings, selectors)),
        Group(name="queenright-acting", file=FILE, links=links, rules=intervention_alerts),
    )


def _build_degraded_alert(selectors: Selectors) -> Alert:
    share, minimum = DEGRADED_SHARE, _DEGRADED_MINIMUM
    unpaged_agents = select(selectors, names.UNPAGED_AGENTS)
    unpaged = select(selectors, names.AGENT_UNPAGED, IN_PARTITIONS)
    duplicates = f"(sum(sum by (job, agent) ({unpaged}) - min by (job, agent) ({unpaged})) or vector(0))"
    return Alert(
        name="QueenrightFleetDegraded",
        why="Agents about which a ticket has paged are not counted, so that one problem is one page. This "
        f"covers problems without a critical ticket. Fleets below {minimum} agents are excluded. An agent "
        "with sessions in several partitions counts once.",
        expr=f"(sum({unpaged_agents}) - {duplicates}) / {AGENTS} >= {share:g}\nand\n{AGENTS} >= {minimum}",
        for_="5m",
        keep_firing_for="5m",
        severity="critical",
        summary="Most of the fleet is unhealthy, and nobody was paged.",
        description="{{ $value | humanizePercentage }} of the agents are degraded, stuck or failing, and no "
        "ticket has paged anybody about them. Look for a shared cause first.",
        threshold=f"≥ {share:.0%} of at least {minimum} agents, without those that a ticket has paged about",
        reason="agents that fail at the same time usually share a cause: a provider, a tool, a network, a "
        "release",
        dashboard="queenright-fleet",
    )


def _build_breaker_alert(settings: HealthSettings, selectors: Selectors) -> Alert:
    timeout = settings.circuit_breaker.default.recovery_timeout_seconds
    window = format_promql_duration(5 * timeout)
    closed_state = select(selectors, names.CIRCUIT_BREAKER_STATE, 'state="closed"')
    open_state = select(selectors, names.CIRCUIT_BREAKER_STATE, 'state="open"')
    any_state = select(selectors, names.CIRCUIT_BREAKER_STATE)
    return Alert(
        name="QueenrightCircuitBreakerOpen",
        why="A breaker that keeps failing alternates between open and half open, and may close briefly "
        "between failures. An unused breaker stays half open, which is ignored after an hour. The last "
        "line excludes breakers that no longer exist; a restart of the service within a minute does not "
        "resolve the alert.",
        expr=f"max by (breaker, partition) (avg_over_time({closed_state}[{window}])) <= 0.5\n"
        "and\n"
        f"max by (breaker, partition) (max_over_time({open_state}[1h])) == 1\n"
        "and\n"
        f"max by (breaker, partition) (last_over_time({any_state}[1m])) == 1",
        for_=format_promql_duration(3 * timeout),
        severity=settings.alerting.circuit_breaker_open.severity,
        summary="A circuit breaker stays open.",
        description=f"Breaker {{{{ $labels.breaker }}}} was closed for {{{{ $value | humanizePercentage }}}} "
        f"of the last {5 * timeout / 60:g} minutes. What it protects fails, and calls are rejected. For the "
        "reason, run queenright breakers list --open.",
        threshold=f"not closed for half of {window}, and for {format_promql_duration(3 * timeout)} more: "
        "five and three times `health_monitoring.circuit_breaker.default.recovery_timeout_seconds`",
        reason="a breaker that recovers with its first probes needs no attention, but this one did not "
        "recover",
        dashboard="queenright-breakers",
    )


def _build_recovery_failed_alert(selectors: Selectors) -> Alert:
    given_up = select(selectors, names.RECOVERIES, 'outcome="exhausted"')
    return Alert(
        name="QueenrightRecoveryFailed",
        why="Only a warning, because the agent's ticket (cause recovery_failed, critical) pages.",
        expr=f"sum(increase({given_up}[1h])) > 0",
        for_="15s",
        severity="warning",
        summary="A task was given up because its recovery failed.",
        description='Tasks given up in the last hour: {{ $value | printf "%.0f" }}. For the reasons, see '
        "the entries with exhausted true in queenright recoveries --json, or the console. Each agent has a "
        "critical ticket: queenright tickets.",
        threshold="1 task within an hour, after `health_monitoring.recovery.max_attempts_per_task` attempts",
        reason="nothing more is tried automatically, so somebody must finish the work or drop it",
        dashboard="queenright-interventions",
    )


def _build_restart_alert(selectors: Selectors) -> Alert:
    restarts = select(selectors, names.RECOVERIES, 'outcome="from_start"')
    return Alert(
        name="QueenrightTaskRestartedFromStart",
        why="The task continues, so there is no ticket; this alert informs people.",
        expr=f"sum(increase({restarts}[1h])) > 0",
        for_="15s",
        severity="warning",
        summary="A task restarted from the beginning because it had no valid checkpoint.",
        description='Tasks restarted in the last hour: {{ $value | printf "%.0f" }}. Their earlier work may '
        "be repeated. See the entries with from_start true in queenright recoveries --json, or the console; "
        "for the cause, run queenright interventions.",
        threshold="1 task within an hour",
        reason="the task's external effects (emails, tickets, payments) may happen twice",
        dashboard="queenright-interventions",
    )
