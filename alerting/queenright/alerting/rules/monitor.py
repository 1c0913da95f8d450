"""About Queenright itself, for whoever is on call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queenright.alerting.rules.promql import BY_WORKER, SHORTEST_WINDOW, duration, in_words, select
from queenright.alerting.rules.rule import Alert, Group, Links, Selectors
from queenright.health.settings import HealthSettings
from queenright.instrumentation import names
from queenright.instrumentation.names import SOURCE_MONITOR

FILE: Final = "monitor.yml"
_BY_SERVICE: Final = "by (job, instance)"
"""Where several services are scraped, one that fails is not hidden by the others."""


def groups(settings: HealthSettings, selectors: Selectors, links: Links) -> tuple[Group, ...]:
    """Return the alerts about the monitor."""
    rules = (
        _down(selectors),
        _blind(settings, selectors),
        *_judge(settings, selectors),
        *_budget(settings, selectors),
        *_deliveries(settings, selectors),
        *_losses(selectors),
        _clocks(settings, selectors),
        _watchdog(),
    )
    return (Group(name="queenright-monitor", file=FILE, links=links, rules=rules),)


def _down(selectors: Selectors) -> Alert:
    up = f"up{{{selectors.up}}}"
    return Alert(
        name="QueenrightMonitorDown",
        why="absent(): a target that is gone from the configuration is no better than one that does not "
        "answer.",
        expr=f"{up} == 0 or absent({up})",
        for_="1m",
        keep_firing_for="1m",
        severity="critical",
        source=SOURCE_MONITOR,
        summary="Queenright is down: nobody watches the agents.",
        description="Prometheus has not been able to scrape {{ $labels.job }} for a minute.",
        threshold="one minute without a scrape",
        reason="nobody is told of a worker in trouble while this lasts",
        dashboard="queenright-monitor",
    )


def _blind(settings: HealthSettings, selectors: Selectors) -> Alert:
    evaluated = select(selectors, names.WORKERS_EVALUATED)
    known = select(selectors, names.AGENTS, 'state!="terminated"')
    alive = f"sum {_BY_SERVICE} ({known}) > 0"
    sweeps = select(selectors, names.HEALTH_CHECKS)
    interval = settings.health_check.interval_seconds
    window = max(5 * interval, SHORTEST_WINDOW)
    return Alert(
        name="QueenrightMonitorBlind",
        why="The gauge keeps its value when sweeping stops, so the count of sweeps is asked as well.",
        expr=f"(sum {_BY_SERVICE} ({evaluated}) == 0 and {alive})\nor\n"
        f"(sum {_BY_SERVICE} (increase({sweeps}[{duration(window)}])) == 0 and {alive})",
        for_=duration(2 * interval),
        keep_firing_for="1m",
        severity="critical",
        source=SOURCE_MONITOR,
        summary="Queenright is up and looks at no agent.",
        description="Agents are known, and the last sweep looked at none of them, or there has been no sweep "
        f"for {in_words(window)} (value {{{{ $value | humanize }}}}).",
        threshold=f"two sweeps ({duration(2 * interval)}) that looked at nobody, or none for "
        f"{duration(window)} "
        "(`health_monitoring.health_check.interval_seconds`)",
        reason="a monitor that is up and sees nothing looks exactly like a healthy fleet",
        dashboard="queenright-monitor",
    )


def _judge(settings: HealthSettings, selectors: Selectors) -> Iterator[Alert]:
    interval = settings.judge.interval_seconds
    yield Alert(
        name="QueenrightJudgeSilent",
        why="The wait lets a service that has just started have its first check.",
        expr=f"time() - max {_BY_SERVICE} ({select(selectors, names.JUDGE_LAST_CHECK)}) >= {2 * interval:g}",
        for_=duration(1.5 * interval),
        keep_firing_for="1m",
        severity="critical",
        source=SOURCE_MONITOR,
        summary="The judge has gone silent.",
        description="The judge last finished a check {{ $value | humanizeDuration }} ago.",
        threshold=f"≥ {2 * interval:g} s since its last check: twice "
        "`health_monitoring.judge.interval_seconds`",
        reason="detectors go on, but nobody writes tickets but the rules, after their bypass",
        dashboard="queenright-judge",
    )
    unknown = select(selectors, names.JUDGE_CHECKS, 'outcome="unknown"')
    checks = select(selectors, names.JUDGE_CHECKS)
    share, minimum = settings.rules.judge_unknown_share, settings.rules.judge_minimum_checks
    yield Alert(
        name="QueenrightJudgeFailing",
        why="A model that fails is never a verdict about a worker, and is a fault of the monitor.",
        expr=f"sum(increase({unknown}[10m]))\n/\nsum(increase({checks}[10m]))\n> {share:g}\nand\n"
        f"sum(increase({checks}[10m])) >= {minimum}",
        for_="2m",
        keep_firing_for="5m",
        severity="warning",
        source=SOURCE_MONITOR,
        summary="The judge cannot reach a verdict.",
        description="{{ $value | humanizePercentage }} of the judge's checks in the last 10 minutes ended "
        "without a verdict; the rules' answer stands.",
        threshold=f"> {share:.0%} of at least {minimum} checks in 10 min "
        "(`health_monitoring.rules.judge_unknown_share`, `.judge_minimum_checks`)",
        reason="the model is down, too slow, or answers in a form that cannot be used",
        dashboard="queenright-judge",
    )
    fallbacks = select(selectors, names.LLM_FALLBACKS, 'reason!="budget"')
    yield Alert(
        name="QueenrightJudgeOnRules",
        why="The first answers that a model does not give are no verdict (QueenrightJudgeFailing); after "
        "some of them in a row the rules answer, and checks look well again. A spent budget has an alert of "
        "its own.",
        expr=f"sum by (role, reason) (increase({fallbacks}[15m])) > 0",
        for_="15s",
        severity="warning",
        source=SOURCE_MONITOR,
        summary="The rules judge in place of a model that fails.",
        description="The {{ $labels.role }}'s model failed several times in a row (last: {{ $labels.reason "
        "}}); in the "
        'last 15 minutes the rules answered {{ $value | printf "%.0f" }} times in its place.',
        threshold="1 answer of the rules in place of the model within 15 min",
        reason="you pay for a model's judgement and do not get it",
        dashboard="queenright-judge",
    )


def _budget(settings: HealthSettings, selectors: Selectors) -> Iterator[Alert]:
    spent = (
        f"max by (window, unit) ({select(selectors, names.LLM_BUDGET_SPENT)} / "
        f"{select(selectors, names.LLM_BUDGET_LIMIT)})"
    )
    low = settings.rules.budget_low_share
    of_what = (
        "{{ $value | humanizePercentage }} of the {{ $labels.unit }} that judging may cost in any "
        "{{ $labels.window }} are spent"
    )
    yield Alert(
        name="QueenrightJudgingBudgetLow",
        expr=f"{spent} >= {low:g} < 1",
        for_="1m",
        keep_firing_for="5m",
        severity="warning",
        source=SOURCE_MONITOR,
        summary="The budget for judging is nearly spent.",
        description=f"{of_what}; past 100% the rules judge.",
        threshold=f"≥ {low:.0%} of `judging.budget` (`health_monitoring.rules.budget_low_share`)",
        reason="there is still time to raise it, or to see what costs so much",
        dashboard="queenright-cost",
    )
    yield Alert(
        name="QueenrightJudgingBudgetSpent",
        why="A warning: detecting, tickets and pages go on by the rules.",
        expr=f"{spent} >= 1",
        for_="15s",
        keep_firing_for="5m",
        severity="warning",
        source=SOURCE_MONITOR,
        summary="The budget for judging is spent.",
        description=f"{of_what}; no model is asked, the rules judge.",
        threshold="≥ 100% of `judging.budget`",
        reason="no model is asked until the window has moved on",
        dashboard="queenright-cost",
    )


def _deliveries(settings: HealthSettings, selectors: Selectors) -> Iterator[Alert]:
    pending = select(selectors, names.OUTBOX_PENDING)
    oldest = select(selectors, names.OUTBOX_OLDEST)
    stuck = settings.rules.outbox_stuck_seconds
    yield Alert(
        name="QueenrightOutboxStuck",
        why="The time stamp is 0 while nothing is pending.",
        expr=f"max {_BY_SERVICE} ({pending}) > 0\nand\ntime() - min {_BY_SERVICE} ({oldest} > 0) >= {stuck:g}"
        "",
        for_="1m",
        keep_firing_for="1m",
        severity="critical",
        source=SOURCE_MONITOR,
        summary="Notifications do not leave Queenright.",
        description='{{ $value | printf "%.0f" }} notifications have not been taken by every Alertmanager '
        "for "
        f"more than {in_words(stuck)}.",
        threshold=f"≥ {stuck:g} s since the oldest was written "
        "(`health_monitoring.rules.outbox_stuck_seconds`)",
        reason="people are not told; nothing is lost, and all is delivered once Alertmanager answers",
        dashboard="queenright-monitor",
    )
    failed = select(selectors, names.NOTIFICATIONS, 'outcome="failed"')
    yield Alert(
        name="QueenrightDeliveriesFailing",
        expr=f"sum(increase({failed}[15m])) > 0",
        for_="15s",
        severity="critical",
        source=SOURCE_MONITOR,
        summary="Alertmanager refuses notifications.",
        description='{{ $value | printf "%.0f" }} notifications were refused in the last 15 minutes; they '
        "are not "
        "tried again as they are.",
        threshold="1 refusal (400, 413, 422) within 15 min",
        reason="a page that was refused is not sent again as it is: somebody has to look",
        dashboard="queenright-monitor",
    )


def _losses(selectors: Selectors) -> Iterator[Alert]:
    telemetry = select(selectors, names.TELEMETRY_DROPPED)
    yield Alert(
        name="QueenrightTelemetryDropped",
        expr=f"sum by (job, signal) (increase({telemetry}[10m])) > 0",
        for_="5m",
        severity="warning",
        source=SOURCE_MONITOR,
        summary="Telemetry is being dropped.",
        description='{{ $value | printf "%.0f" }} items of {{ $labels.signal }} were dropped in the last 10 '
        "minutes.",
        threshold="any within 10 min, for 5 min",
        reason="what is not seen is not judged",
        dashboard="queenright-monitor",
    )
    rejected = select(selectors, names.TELEMETRY_REJECTED)
    yield Alert(
        name="QueenrightTelemetryRejected",
        expr=f"sum by (dialect, reason) (increase({rejected}[10m])) > 0",
        for_="5m",
        severity="warning",
        source=SOURCE_MONITOR,
        summary="Telemetry cannot be used.",
        description='{{ $value | printf "%.0f" }} records of {{ $labels.dialect }} were rejected in the last '
        "10 minutes: {{ $labels.reason }}.",
        threshold="any within 10 min, for 5 min",
        reason="an agent that sends it is not seen, or not whole; its sender has to change something",
        dashboard="queenright-monitor",
    )
    events = select(selectors, names.EVENT_BUS_DROPPED)
    yield Alert(
        name="QueenrightEventsDropped",
        expr=f"sum by (subscriber) (increase({events}[10m])) > 0",
        for_="5m",
        severity="warning",
        source=SOURCE_MONITOR,
        summary="A part of Queenright is too slow for the events.",
        description='Subscriber {{ $labels.subscriber }} missed {{ $value | printf "%.0f" }} events in the '
        "last "
        "10 minutes; alerts are never among them.",
        threshold="any within 10 min, for 5 min",
        reason="that part's picture of the fleet has gaps",
        dashboard="queenright-monitor",
    )
    series = select(selectors, names.SERIES_LIMITED)
    yield Alert(
        name="QueenrightSeriesLimited",
        expr=f"sum by (metric) (increase({series}[1h])) > 0",
        for_="5m",
        severity="warning",
        source=SOURCE_MONITOR,
        summary="Metrics have more label values than are kept.",
        description='{{ $value | printf "%.0f" }} label values of {{ $labels.metric }} were folded into '
        "other in "
        "the last hour.",
        threshold="any within an hour",
        reason="something that should be a name is an id, or the fleet has outgrown its bounds",
        dashboard="queenright-monitor",
    )


def _clocks(settings: HealthSettings, selectors: Selectors) -> Alert:
    ahead = settings.clock_tolerance_seconds
    activity = select(selectors, names.WORKER_LAST_ACTIVITY)
    check = select(selectors, names.JUDGE_LAST_CHECK)
    return Alert(
        name="QueenrightClockSkew",
        why="Only a clock that is ahead shows: what one that is behind says looks like silence.",
        expr=f"max {BY_WORKER} ({activity}) - time() > {ahead:g}\nor\n"
        f"max {_BY_SERVICE} ({check}) - time() > {ahead:g}",
        for_="2m",
        keep_firing_for="5m",
        severity="warning",
        source=SOURCE_MONITOR,
        summary="A clock is ahead of Prometheus'.",
        description="The clock of {{ $labels.instance }} is {{ $value | humanizeDuration }} ahead: ages that "
        "are counted from its time stamps are too small, so a stall is seen that much later.",
        threshold=f"> {ahead:g} s (`health_monitoring.clock_tolerance_seconds`)",
        reason="every age in these rules is a difference of two clocks",
        dashboard="queenright-monitor",
    )


def _watchdog() -> Alert:
    return Alert(
        name="QueenrightWatchdog",
        why="No wait: its only use is to be there.",
        expr="vector(1)",
        severity="none",
        source=SOURCE_MONITOR,
        summary="The chain from Prometheus to Alertmanager works.",
        description="Always firing: whoever receives it must raise the alarm when it stops (value "
        "{{ $value | humanize }}).",
        threshold="always",
        reason="an alert that is missing is the only sign that alerting itself is dead",
        dashboard="queenright-monitor",
    )
