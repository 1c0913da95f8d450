"""Alerts about symptoms of single workers. They trigger the judge and do not page anyone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from queenright.alerting.rules.promql import (
    ACTIVITY,
    BY_WORKER,
    CHECKPOINT,
    HEARTBEAT,
    MIN_WINDOW,
    ON_WORKER,
    UNLESS_WAITING,
    format_duration_in_words,
    format_promql_duration,
    select,
)
from queenright.alerting.rules.recording import TOKENS, TOOL_CALLS, TOOL_ERRORS, USUAL_TOKENS
from queenright.alerting.rules.rule import Alert, Group, Links, Selectors, Severity
from queenright.health.objectives import TOOL_ERROR_SHARE
from queenright.health.settings import HealthSettings
from queenright.instrumentation import names
from queenright.instrumentation.names import SOURCE_RULES, WaitingReason

FILE: Final = "agents.yml"
_DASHBOARD: Final = "queenright-agent?var-agent={{ $labels.agent | urlquery }}"
_AGENT: Final = "Agent {{ $labels.agent }}"
_alert: Final = partial(Alert, source=SOURCE_RULES, dashboard=_DASHBOARD)
_WAITING_SECONDS: Final = 1800.0
"""An unanswered question deserves a look after half an hour. By default the alert notifies nobody."""


def groups(settings: HealthSettings, selectors: Selectors, links: Links) -> tuple[Group, ...]:
    """Return the alerts about single workers."""
    rules = (
        *_build_stall_alerts(settings, selectors),
        *_build_retry_storm_alerts(settings, selectors),
        _build_loop_alert(settings, selectors),
        _build_heartbeat_alert(settings),
        *_build_checkpoint_alerts(settings),
        _build_error_rate_alert(settings),
        _build_token_rate_alert(settings),
        _build_waiting_alert(selectors),
    )
    return (Group(name="queenright-agents", file=FILE, links=links, rules=rules),)


def _build_stall_alerts(settings: HealthSettings, selectors: Selectors) -> Iterator[Alert]:
    threshold_seconds = settings.stall.unknown_seconds
    yield _alert(
        name="QueenrightWorkerStalled",
        why="Prometheus does not know the worker's phase, so this is the threshold for an unknown phase. A "
        "waiting worker is not stalled.",
        expr=f"time() - {ACTIVITY} >= {threshold_seconds:g}\n{UNLESS_WAITING}",
        for_="30s",
        severity="critical",
        summary=f"{_AGENT} has stalled.",
        description=f"{_AGENT} has shown no activity for {{{{ $value | humanizeDuration }}}} "
        "and is not waiting.",
        threshold=f"≥ {threshold_seconds:g} s without activity (`health_monitoring.stall.unknown_seconds`)",
        reason="without any activity for longer than a step or call takes, the worker hangs or is gone",
    )
    stalls = select(selectors, names.WORKER_STALLS)
    limits = settings.stall
    yield _alert(
        name="QueenrightWorkerStalledInPhase",
        why="The worker knows its phase, so it counts stalls with the right threshold.",
        expr=f"sum by (agent, job, instance, phase) (increase({stalls}[10m])) > 0\n"
        f"and {ON_WORKER} {ACTIVITY}\n"
        f"{UNLESS_WAITING}",
        for_="15s",
        severity="critical",
        summary=f"{_AGENT} reports a stall.",
        description=f'{_AGENT} counted {{{{ $value | printf "%.0f" }}}} stalls in phase '
        "{{ $labels.phase }}.",
        threshold=f"a stall within 10 min: ≥ {limits.idle_seconds:g} s idle, {limits.llm_seconds:g} s in a "
        f"model call, {limits.tool_seconds:g} s in a tool (`health_monitoring.stall`, counted by the worker)",
        reason="four minutes are normal in a tool but long between steps, so each phase has its own "
        "threshold",
    )


def _build_retry_storm_alerts(settings: HealthSettings, selectors: Selectors) -> Iterator[Alert]:
    bands = settings.bands
    bad_steps = f"max {BY_WORKER} ({select(selectors, names.WORKER_STEPS_SINCE_ACCEPT)})"
    ranges: tuple[tuple[str, int, int | None, Severity], ...] = (
        ("medium", bands.medium, bands.high, "warning"),
        ("high", bands.high, bands.critical, "critical"),
        ("critical", bands.critical, None, "critical"),
    )
    for band, low, high, severity in ranges:
        upper_limit = f" < {high}" if high is not None else ""
        yield _alert(
            name="QueenrightRetryStorm",
            expr=f"{bad_steps} >= {low}{upper_limit}\n{UNLESS_WAITING}",
            for_="15s",
            severity=severity,
            labels={"ticket_severity": band},
            summary=f"{_AGENT} retries without an accepted step.",
            description=f"{_AGENT} has had {{{{ $value | humanize }}}} bad steps since its last ACCEPT.",
            threshold=f"≥ {low} bad steps since the last ACCEPT (`health_monitoring.bands.{band}`)",
            reason="bad steps cost as much as good ones and achieve nothing",
        )


def _build_loop_alert(settings: HealthSettings, selectors: Selectors) -> Alert:
    calls = select(selectors, names.WORKER_TOOL_CALLS)
    progress = select(selectors, names.WORKER_LAST_PROGRESS)
    no_progress_seconds = settings.stall.unknown_seconds
    window = format_promql_duration(max(no_progress_seconds, MIN_WINDOW))
    return _alert(
        name="QueenrightLoop",
        why="Progress is an ACCEPT, a checkpoint, or a new tool result. Many calls without progress suggest "
        "a loop; the judge finds out which call repeats.",
        expr=f"sum {BY_WORKER} (increase({calls}[{window}])) >= {settings.bands.warning}\n"
        f"and {ON_WORKER}\n"
        f"time() - max {BY_WORKER} ({progress}) >= {no_progress_seconds:g}\n"
        f"{UNLESS_WAITING}",
        for_="30s",
        severity="critical",
        summary=f"{_AGENT} is busy but makes no progress.",
        description=f'{_AGENT} has made {{{{ $value | printf "%.0f" }}}} tool calls '
        f"in {format_duration_in_words(no_progress_seconds)} without any progress.",
        threshold=f"≥ {settings.bands.warning} tool calls (`health_monitoring.bands.warning`) and no "
        f"progress for {no_progress_seconds:g} s (`health_monitoring.stall.unknown_seconds`)",
        reason="heartbeats cannot show that a busy worker makes no progress",
    )


def _build_heartbeat_alert(settings: HealthSettings) -> Alert:
    timeout = settings.heartbeat.timeout_seconds
    return _alert(
        name="QueenrightHeartbeatMissing",
        why="Waiting workers are not excluded, because they still send heartbeats.",
        expr=f"time() - {HEARTBEAT} >= {timeout:g}",
        for_="30s",
        severity="critical",
        summary=f"{_AGENT} sends no heartbeats.",
        description="The last heartbeat of agent {{ $labels.agent }} was "
        "{{ $value | humanizeDuration }} ago.",
        threshold=f"≥ {timeout:g} s without a heartbeat (`health_monitoring.heartbeat.timeout_seconds`)",
        reason="two heartbeats are missing, so the process is gone, frozen or disconnected",
    )


def _build_checkpoint_alerts(settings: HealthSettings) -> Iterator[Alert]:
    degraded_seconds = settings.health_check.checkpoint_degraded_seconds
    stale_seconds = settings.health_check.checkpoint_stale_threshold_seconds
    setting = "`health_monitoring.health_check.checkpoint_stale_threshold_seconds`"
    bands: tuple[tuple[Severity, str, str, str], ...] = (
        (
            "warning",
            f">= {degraded_seconds:g} < {stale_seconds:g}",
            f"≥ {degraded_seconds:g} s",
            f"a third of {setting}",
        ),
        ("critical", f">= {stale_seconds:g}", f"≥ {stale_seconds:g} s", setting),
    )
    for severity, limit, condition, source in bands:
        yield _alert(
            name="QueenrightCheckpointStale",
            why="Only for workers that save checkpoints. Others have no series, or the value 0.",
            expr=f"time() - ({CHECKPOINT} > 0) {limit}\n{UNLESS_WAITING}",
            for_="30s",
            severity=severity,
            summary=f"{_AGENT} has not saved a checkpoint for too long.",
            description=f"{_AGENT} last saved its state {{{{ $value | humanizeDuration }}}} ago. If it "
            "stops now, its later work is lost.",
            threshold=f"{condition} since the last checkpoint ({source})",
            reason="unsaved work must be repeated after a crash, and a worker that no longer saves is "
            "often stuck",
        )


def _build_error_rate_alert(settings: HealthSettings) -> Alert:
    share, minimum = TOOL_ERROR_SHARE, settings.loops.error_streak
    return _alert(
        name="QueenrightErrorRate",
        why="There is a minimum of calls, because one failed call of one is not a rate. The activity "
        "series excludes workers that have ended.",
        expr=f"{TOOL_ERRORS} > {share:g}\n"
        f"and {ON_WORKER}\n"
        f"300 * sum {BY_WORKER} ({TOOL_CALLS}) >= {minimum}\n"
        f"and {ON_WORKER} {ACTIVITY}\n"
        f"{UNLESS_WAITING}",
        for_="2m",
        keep_firing_for="5m",
        severity="warning",
        summary="Most tool calls of agent {{ $labels.agent }} fail.",
        description="{{ $value | humanizePercentage }} of the tool calls of agent {{ $labels.agent }} failed "
        "in the last 5 minutes.",
        threshold=f"> {share:.0%} of at least {minimum} calls in 5 min",
        reason="the tools are down, or the worker uses them incorrectly",
    )


def _build_token_rate_alert(settings: HealthSettings) -> Alert:
    factor, minimum = settings.loops.token_spike_factor, settings.loops.token_spike_minimum
    return _alert(
        name="QueenrightTokenRate",
        why="The usual rate is the average over the active time in the last six hours. The worker must have "
        "been active an hour ago, because a new worker has no usual rate, and must use a minimum of tokens.",
        expr=f"{TOKENS} >= {factor:g} * {USUAL_TOKENS}\n"
        "and\n"
        f"600 * {TOKENS} >= {minimum}\n"
        f"and {TOKENS} offset 1h\n"
        f"and {ON_WORKER} {ACTIVITY}\n"
        f"{UNLESS_WAITING}",
        for_="1m",
        keep_firing_for="5m",
        severity="warning",
        summary=f"{_AGENT} uses far more tokens than usual.",
        description=f"{_AGENT} uses {{{{ $value | humanize }}}} tokens per second, at least {factor:g} times "
        "its usual rate in the last six hours.",
        threshold=f"≥ {factor:g} times the usual rate, and ≥ {minimum} tokens in 10 min",
        reason="the cost is the first sign of a growing context or a loop",
    )


def _build_waiting_alert(selectors: Selectors) -> Alert:
    limit = format_duration_in_words(_WAITING_SECONDS)
    waits = select(selectors, names.WORKER_WAITING, f'reason="{WaitingReason.USER_INPUT}"')
    return _alert(
        name="QueenrightWaitingForUser",
        why="Nothing is wrong with the worker: a person has not answered. This is informational, and "
        "never a stall.",
        expr=f"max by (agent) ({waits}) == 1",
        for_=format_promql_duration(_WAITING_SECONDS),
        severity="info",
        summary=f"{_AGENT} is waiting for an answer.",
        description=f"{_AGENT} has been waiting for its user for more than {limit}.",
        threshold=f"waiting for {limit}",
        reason="an unanswered question stops the work as a failure does",
    )
