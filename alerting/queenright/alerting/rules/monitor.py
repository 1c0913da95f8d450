"""Alerts about Queenright itself, for on-call."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from queenright.alerting.rules.promql import (
    BY_WORKER,
    MIN_WINDOW,
    format_duration_in_words,
    format_promql_duration,
    select,
)
from queenright.alerting.rules.rule import Alert, Group, Links, Selectors
from queenright.health.objectives import BUDGET_LOW_SHARE, JUDGE_UNKNOWN_SHARE, OUTBOX_STUCK_SECONDS
from queenright.health.settings import CLOCK_TOLERANCE_SECONDS, HealthSettings
from queenright.instrumentation import names

FILE: Final = "monitor.yml"
_JUDGE_MINIMUM_CHECKS: Final = 4
"""Minimum number of checks. Of fewer checks, a single failure would be a large share."""
_EXPORTER_RETRY_WINDOW: Final = "3m"
"""
How long alerts about an outage keep firing. Until the exporters have retried, agents look silent, and these
alerts inhibit the symptoms.
"""
_alert: Final = partial(Alert, dashboard="queenright-monitor")
_SERVICE_LABELS: Final = "job, instance, partition"
_BY_SERVICE: Final = f"by ({_SERVICE_LABELS})"
"""
Group by service, so that healthy services do not hide a failing one. A process of a cluster may run several.
"""


def groups(settings: HealthSettings, selectors: Selectors, links: Links) -> tuple[Group, ...]:
    """Return the alerts about the monitor."""
    rules = (
        _build_down_alert(selectors),
        _build_blind_alert(settings, selectors),
        _build_not_listening_alert(selectors),
        *_build_judge_alerts(settings, selectors),
        *_build_budget_alerts(selectors),
        *_build_delivery_alerts(selectors),
        *_build_loss_alerts(selectors),
        _build_clock_alert(selectors),
        *_build_cluster_alerts(selectors),
        _build_watchdog_alert(),
    )
    return (Group(name="queenright-monitor", file=FILE, links=links, rules=rules),)


def _build_down_alert(selectors: Selectors) -> Alert:
    up = f"up{{{selectors.up}}}"
    return _alert(
        name="QueenrightMonitorDown",
        why="absent() also fires if the target is missing from the scrape configuration. Does not fire "
        "while another process of the cluster watches the agents; then QueenrightClusterProcessDown fires.",
        expr=f"({up} == 0 unless on (job) {_owner_count(selectors)})\nor\nabsent({up})",
        for_="1m",
        keep_firing_for="1m",
        severity="critical",
        summary="Queenright is down, so agents are not monitored.",
        description="Prometheus has not been able to scrape {{ $labels.job }} for a minute.",
        threshold="one minute without a scrape",
        reason="nobody is notified about agents while this lasts",
    )


def _build_blind_alert(settings: HealthSettings, selectors: Selectors) -> Alert:
    evaluations = select(selectors, names.WORKERS_EVALUATED)
    agents = select(selectors, names.AGENTS)
    alive = f"sum {_BY_SERVICE} ({agents}) > 0"
    sweeps = select(selectors, names.HEALTH_CHECKS)
    interval = settings.health_check.interval_seconds
    window = max(5 * interval, MIN_WINDOW)
    return _alert(
        name="QueenrightMonitorBlind",
        why="The gauge keeps its value when sweeps stop, so the number of sweeps is checked as well. They "
        "pause while telemetry cannot arrive; then QueenrightNotListening or QueenrightClusterStreamDown "
        "fires.",
        expr=f"(sum {_BY_SERVICE} ({evaluations}) == 0 and {alive}\nor\n"
        f"sum {_BY_SERVICE} (increase({sweeps}[{format_promql_duration(window)}])) == 0 and {alive})\n"
        f"unless on ({_SERVICE_LABELS}) {select(selectors, names.LISTENING)} == 0",
        for_=format_promql_duration(2 * interval),
        keep_firing_for="1m",
        severity="critical",
        summary="Queenright is up but evaluates no agents.",
        description="Agents are known, but the last sweep evaluated none of them, or no sweep has run "
        f"for {format_duration_in_words(window)} (value {{{{ $value | humanize }}}}).",
        threshold=f"two sweeps ({format_promql_duration(2 * interval)}) without an evaluated agent, "
        f"or no sweep for {format_promql_duration(window)} "
        "(`health_monitoring.health_check.interval_seconds`)",
        reason="a monitor that is up but evaluates nothing looks like a healthy fleet",
    )


def _build_not_listening_alert(selectors: Selectors) -> Alert:
    return _alert(
        name="QueenrightNotListening",
        why="Without NATS, QueenrightClusterStreamDown fires instead.",
        expr=f"max {_BY_SERVICE} ({select(selectors, names.LISTENING)}) == 0\n"
        f"unless on (job) max by (job) ({select(selectors, names.CLUSTER_STREAM_UP)}) == 0",
        for_="1m",
        keep_firing_for=_EXPORTER_RETRY_WINDOW,
        severity="critical",
        summary="Queenright cannot store telemetry.",
        description="{{ $labels.instance }} cannot write to its database. Until it can, telemetry is refused "
        "or waits in NATS, and no agent is judged by its silence.",
        threshold="one minute without a successful write",
        reason="exporters can keep only a limited amount, and nobody is notified about agents while this "
        "lasts",
    )


def _build_judge_alerts(settings: HealthSettings, selectors: Selectors) -> Iterator[Alert]:
    interval = settings.judge.interval_seconds
    yield _alert(
        name="QueenrightJudgeSilent",
        why="The wait gives a service that has just started time for its first check. The judge checks "
        "nothing while telemetry cannot arrive; then QueenrightNotListening or "
        "QueenrightClusterStreamDown fires.",
        expr=f"time() - max {_BY_SERVICE} ({select(selectors, names.JUDGE_LAST_CHECK)}) >= {2 * interval:g}\n"
        f"unless on ({_SERVICE_LABELS}) {select(selectors, names.LISTENING)} == 0",
        for_=format_promql_duration(1.5 * interval),
        keep_firing_for="1m",
        severity="critical",
        summary="The judge has stopped.",
        description="The judge last finished a check {{ $value | humanizeDuration }} ago.",
        threshold=f"≥ {2 * interval:g} s since its last check: twice "
        "`health_monitoring.judge.interval_seconds`",
        reason="detectors still run, but only the rules open tickets, after their bypass delay",
        dashboard="queenright-judge",
    )
    unknown = select(selectors, names.JUDGE_CHECKS, 'outcome="unknown"')
    checks = select(selectors, names.JUDGE_CHECKS)
    share, minimum = JUDGE_UNKNOWN_SHARE, _JUDGE_MINIMUM_CHECKS
    yield _alert(
        name="QueenrightJudgeFailing",
        why="A failing model is a problem of the monitor, never a verdict about a worker.",
        expr=f"sum(increase({unknown}[10m]))\n/\nsum(increase({checks}[10m]))\n> {share:g}\nand\n"
        f"sum(increase({checks}[10m])) >= {minimum}",
        for_="2m",
        keep_firing_for="5m",
        severity="warning",
        summary="The judge often cannot reach a verdict.",
        description="{{ $value | humanizePercentage }} of the judge's checks in the last 10 minutes ended "
        "without a verdict; the rules decide instead.",
        threshold=f"> {share:.0%} of at least {minimum} checks in 10 min",
        reason="the model is down, too slow, or returns invalid answers",
        dashboard="queenright-judge",
    )
    fallbacks = select(selectors, names.LLM_FALLBACKS, 'reason!="budget"')
    yield _alert(
        name="QueenrightJudgeOnRules",
        why="The first failures of a model are checks without a verdict (QueenrightJudgeFailing). After "
        "several in a row, the rules answer and the checks look healthy again. A spent budget has its own "
        "alert.",
        expr=f"sum by (role, reason) (increase({fallbacks}[15m])) > 0",
        for_="15s",
        severity="warning",
        summary="The built-in rules replace a failing model.",
        description="The {{ $labels.role }}'s model failed several times in a row (last: {{ $labels.reason "
        "}}); in the "
        'last 15 minutes the rules answered {{ $value | printf "%.0f" }} times in its place.',
        threshold="1 answer by the rules instead of the model within 15 min",
        reason="decisions are made without the configured model",
        dashboard="queenright-judge",
    )


def _build_budget_alerts(selectors: Selectors) -> Iterator[Alert]:
    spent_share = (
        f"max by (window, unit) ({select(selectors, names.LLM_BUDGET_SPENT)} / "
        f"{select(selectors, names.LLM_BUDGET_LIMIT)})"
    )
    low_share = BUDGET_LOW_SHARE
    usage = (
        "{{ $value | humanizePercentage }} of the judging budget ({{ $labels.unit }} per "
        "{{ $labels.window }}) is spent"
    )
    yield _alert(
        name="QueenrightJudgingBudgetLow",
        expr=f"{spent_share} >= {low_share:g} < 1",
        for_="1m",
        keep_firing_for="5m",
        severity="warning",
        summary="The budget for judging is nearly spent.",
        description=f"{usage}. From 100% on, the rules decide.",
        threshold=f"≥ {low_share:.0%} of `judging.budget`",
        reason="there is still time to raise the budget, or to find out what costs so much",
        dashboard="queenright-cost",
    )
    yield _alert(
        name="QueenrightJudgingBudgetSpent",
        why="Only a warning, because detection, tickets and pages continue with the rules.",
        expr=f"{spent_share} >= 1",
        for_="15s",
        keep_firing_for="5m",
        severity="warning",
        summary="The budget for judging is spent.",
        description=f"{usage}. The rules decide, and no model is called.",
        threshold="≥ 100% of `judging.budget`",
        reason="no model is called until spending in the window is below the limit again",
        dashboard="queenright-cost",
    )


def _build_delivery_alerts(selectors: Selectors) -> Iterator[Alert]:
    pending = select(selectors, names.OUTBOX_PENDING)
    oldest = select(selectors, names.OUTBOX_OLDEST)
    stuck_seconds = OUTBOX_STUCK_SECONDS
    yield _alert(
        name="QueenrightOutboxStuck",
        why="The timestamp is 0 while nothing is pending.",
        expr=f"max {_BY_SERVICE} ({pending}) > 0\nand\ntime() - min {_BY_SERVICE} ({oldest} > 0) >= "
        f"{stuck_seconds:g}",
        for_="1m",
        keep_firing_for="1m",
        severity="critical",
        summary="Notifications do not reach Alertmanager.",
        description='{{ $value | printf "%.0f" }} notifications have not been accepted by every Alertmanager '
        f"for more than {format_duration_in_words(stuck_seconds)}.",
        threshold=f"≥ {stuck_seconds:g} s since the oldest undelivered notification was written",
        reason="people are not notified; nothing is lost, and delivery resumes when Alertmanager answers",
    )
    failure_count = select(selectors, names.NOTIFICATIONS, 'outcome="failed"')
    yield _alert(
        name="QueenrightDeliveriesFailing",
        expr=f"sum(increase({failure_count}[15m])) > 0",
        for_="15s",
        severity="critical",
        summary="Alertmanager rejects notifications.",
        description='{{ $value | printf "%.0f" }} notifications were rejected in the last 15 minutes. They '
        "are retried only after their content changes.",
        threshold="1 rejection (400, 413, 422) within 15 min",
        reason="a rejected page is not retried until its content changes, so a person must correct the cause",
    )


def _build_loss_alerts(selectors: Selectors) -> Iterator[Alert]:
    telemetry = select(selectors, names.TELEMETRY_DROPPED)
    yield _alert(
        name="QueenrightTelemetryDropped",
        expr=f"sum by (job, signal) (increase({telemetry}[10m])) > 0",
        for_="5m",
        severity="warning",
        summary="Telemetry is being dropped.",
        description='{{ $value | printf "%.0f" }} items of {{ $labels.signal }} were dropped in the last 10 '
        "minutes.",
        threshold="1 within 10 min, for 5 min",
        reason="detectors do not see dropped data",
    )
    rejections = select(selectors, names.TELEMETRY_REJECTED)
    yield _alert(
        name="QueenrightTelemetryRejected",
        expr=f"sum by (dialect, reason) (increase({rejections}[10m])) > 0",
        for_="5m",
        severity="warning",
        summary="Telemetry is rejected.",
        description='{{ $value | printf "%.0f" }} records of {{ $labels.dialect }} were rejected in the last '
        "10 minutes: {{ $labels.reason }}.",
        threshold="1 within 10 min, for 5 min",
        reason="the agents that send it are not visible, or only partly, until the sender is fixed",
    )
    events = select(selectors, names.EVENT_BUS_DROPPED)
    yield _alert(
        name="QueenrightEventsDropped",
        expr=f"sum by (subscriber) (increase({events}[10m])) > 0",
        for_="5m",
        severity="warning",
        summary="A Queenright component is too slow for the event rate.",
        description='Subscriber {{ $labels.subscriber }} missed {{ $value | printf "%.0f" }} events in the '
        "last "
        "10 minutes. Tickets and interventions are never among them.",
        threshold="1 within 10 min, for 5 min",
        reason="that component has an incomplete view of the fleet",
    )
    series = select(selectors, names.SERIES_LIMITED)
    yield _alert(
        name="QueenrightSeriesLimited",
        expr=f"sum by (metric) (increase({series}[1h])) > 0",
        for_="5m",
        severity="warning",
        summary="A metric has reached its limit of label values.",
        description='{{ $value | printf "%.0f" }} label values of {{ $labels.metric }} were replaced by '
        "other in "
        "the last hour.",
        threshold="1 within an hour",
        reason="a name contains ids, or the fleet has outgrown the limits",
    )


def _build_clock_alert(selectors: Selectors) -> Alert:
    tolerance_seconds = CLOCK_TOLERANCE_SECONDS
    activity = select(selectors, names.WORKER_LAST_ACTIVITY)
    check = select(selectors, names.JUDGE_LAST_CHECK)
    return _alert(
        name="QueenrightClockSkew",
        why="Only a clock that is ahead can be detected, because a clock that is behind looks like silence.",
        expr=f"max {BY_WORKER} ({activity}) - time() > {tolerance_seconds:g}\nor\n"
        f"max {_BY_SERVICE} ({check}) - time() > {tolerance_seconds:g}",
        for_="2m",
        keep_firing_for="5m",
        severity="warning",
        summary="A clock is ahead of Prometheus' clock.",
        description="The clock of {{ $labels.instance }} is {{ $value | humanizeDuration }} ahead, so ages "
        "computed from its timestamps are too small and stalls are detected late.",
        threshold=f"> {tolerance_seconds:g} s",
        reason="every age in these rules is the difference between two clocks",
    )


def _owner_count(selectors: Selectors) -> str:
    """
    Return the condition that the processes of a cluster watch all agents. It is false without a cluster.
    """
    return f"min by (job) (max by (job, partition) ({select(selectors, names.CLUSTER_OWNER)})) == 1"


def _build_cluster_alerts(selectors: Selectors) -> Iterator[Alert]:
    alert = partial(_alert, dashboard="queenright-cluster")
    owner = select(selectors, names.CLUSTER_OWNER)
    yield alert(
        name="QueenrightClusterWithoutOwner",
        expr=f"count by (job, partition) ({owner})\nunless\nmax by (job, partition) ({owner}) == 1",
        for_="1m",
        keep_firing_for="1m",
        severity="critical",
        summary="No process of the cluster watches the agents.",
        description='{{ $value | printf "%.0f" }} processes of {{ $labels.job }} are up, and none of them '
        "owns {{ with $labels.partition }}partition {{ . }} of {{ end }}the cluster.",
        threshold="one minute without an owner; a takeover takes about 10 s",
        reason="telemetry is accepted and waits, but nobody is notified about agents while this lasts",
    )
    yield alert(
        name="QueenrightClusterSeveralOwners",
        why="The wait covers a hand-over between the scrapes of two processes.",
        expr=f"sum by (job, partition) ({owner}) > 1",
        for_="2m",
        keep_firing_for="1m",
        severity="critical",
        summary="Several processes of one cluster claim the same agents.",
        description='{{ $value | printf "%.0f" }} processes of {{ $labels.job }} say that they own '
        "{{ with $labels.partition }}partition {{ . }} of {{ end }}the cluster.",
        threshold="2 owners for 2 min",
        reason="processes with different databases each see only a part of the telemetry, and may notify "
        "twice",
    )
    stream = select(selectors, names.CLUSTER_STREAM_UP)
    yield alert(
        name="QueenrightClusterStreamDown",
        why="While another process accepts telemetry, QueenrightClusterProcessCutOff fires instead.",
        expr=f"max by (job) ({stream}) == 0",
        for_="1m",
        keep_firing_for=_EXPORTER_RETRY_WINDOW,
        severity="critical",
        summary="NATS does not accept telemetry.",
        description="No process of {{ $labels.job }} can publish to NATS, so telemetry is refused (503).",
        threshold="one minute in every process",
        reason="agents keep telemetry only for a short time before they drop it",
    )
    yield alert(
        name="QueenrightClusterProcessCutOff",
        why="If no process reaches NATS, QueenrightClusterStreamDown fires instead.",
        expr=f"max by (job, instance) ({stream}) == 0\nand on (job)\nmax by (job) ({stream}) == 1",
        for_="1m",
        keep_firing_for="1m",
        severity="warning",
        summary="A process of the cluster cannot reach NATS; another process accepts telemetry.",
        description="{{ $labels.instance }} cannot publish to NATS and refuses telemetry (503).",
        threshold="one minute in one process",
        reason="agents that send only to this process drop their telemetry and look silent",
    )
    backlog = select(selectors, names.CLUSTER_BACKLOG)
    yield alert(
        name="QueenrightClusterBacklogGrows",
        why="It grows if its minimum reaches the maximum of the five minutes before. That also holds for a "
        "full stream. After an outage of the database, this alert ends before QueenrightNotListening, which "
        "inhibits it.",
        expr=f"min by (job, partition) (min_over_time({backlog}[5m]))\n>=\n"
        f"max by (job, partition) (max_over_time({backlog}[5m] offset 5m)) > 0",
        for_="2m",
        keep_firing_for="2m",
        severity="critical",
        summary="Accepted telemetry is not stored fast enough.",
        description='{{ $value | printf "%.0f" }} messages or more wait in NATS. Agents are seen as they '
        "were when the oldest of them was sent.",
        threshold="growth for 5 min",
        reason="problems are detected late, and at `cluster.max_backlog_bytes` telemetry is refused",
    )
    yield alert(
        name="QueenrightClusterProcessDown",
        why="While no process is the owner, QueenrightMonitorDown fires instead.",
        expr=f"up{{{selectors.up}}} == 0 and on (job) {_owner_count(selectors)}",
        for_="5m",
        keep_firing_for="1m",
        severity="warning",
        summary="A process of the cluster is down; another process watches the agents.",
        description="Prometheus has not been able to scrape {{ $labels.instance }} for five minutes.",
        threshold="5 min without a scrape, while another process is the owner",
        reason="if only one process is left, its failure is an outage",
    )


def _build_watchdog_alert() -> Alert:
    return _alert(
        name="QueenrightWatchdog",
        why="It has no wait, because it must always fire.",
        expr="vector(1)",
        severity="none",
        summary="The pipeline from Prometheus to Alertmanager works.",
        description="This alert always fires. Its receiver must raise an alarm when it stops (value "
        "{{ $value | humanize }}).",
        threshold="always",
        reason="its absence is the only sign that alerting itself is broken",
    )
