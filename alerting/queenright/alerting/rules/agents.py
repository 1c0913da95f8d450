"""Symptoms of single workers, seen from outside: they wake the judge and page nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from queenright.alerting.rules.promql import (
    ACTIVITY,
    BY_WORKER,
    CHECKPOINT,
    HEARTBEAT,
    ON_WORKER,
    SHORTEST_WINDOW,
    UNLESS_WAITING,
    duration,
    in_words,
    select,
)
from queenright.alerting.rules.recording import TOKENS, TOOL_CALLS, TOOL_ERRORS, USUAL_TOKENS
from queenright.alerting.rules.rule import Alert, Group, Links, Selectors, Severity
from queenright.health.settings import HealthSettings
from queenright.instrumentation import names
from queenright.instrumentation.names import SOURCE_RULES, WaitingReason

FILE: Final = "agents.yml"
_DASHBOARD: Final = "queenright-agent?var-agent={{ $labels.agent | urlquery }}"
_AGENT: Final = "Agent {{ $labels.agent }}"


def groups(settings: HealthSettings, selectors: Selectors, links: Links) -> tuple[Group, ...]:
    """Return the alerts about single workers."""
    rules = (
        *_stalls(settings, selectors),
        *_retry_storms(settings, selectors),
        _loop(settings, selectors),
        _heartbeat(settings),
        *_checkpoints(settings),
        _errors(settings),
        _tokens(settings),
        _waiting(settings, selectors),
    )
    return (Group(name="queenright-agents", file=FILE, links=links, rules=rules),)


def _stalls(settings: HealthSettings, selectors: Selectors) -> Iterator[Alert]:
    longest = settings.stall.unknown_seconds
    yield Alert(
        name="QueenrightWorkerStalled",
        why="From outside it cannot be seen what a worker is in the middle of, so this is the clock of a "
        "phase that is not known. A worker that waits is no stall.",
        expr=f"time() - {ACTIVITY} >= {longest:g}\n{UNLESS_WAITING}",
        for_="30s",
        severity="critical",
        source=SOURCE_RULES,
        summary=f"{_AGENT} has stalled.",
        description=f"{_AGENT} has done nothing for {{{{ $value | humanizeDuration }}}}, and is not waiting.",
        threshold=f"≥ {longest:g} s without activity (`health_monitoring.stall.unknown_seconds`)",
        reason="nothing was done at all, for longer than any step or call takes",
        dashboard=_DASHBOARD,
    )
    stalls = select(selectors, names.WORKER_STALLS)
    clocks = settings.stall
    yield Alert(
        name="QueenrightWorkerStalledInPhase",
        why="The worker knows its phase, so its own count applies the right clock.",
        expr=f"sum by (agent, job, instance, phase) (increase({stalls}[10m])) > 0\n"
        f"and {ON_WORKER} {ACTIVITY}\n"
        f"{UNLESS_WAITING}",
        for_="15s",
        severity="critical",
        source=SOURCE_RULES,
        summary=f"{_AGENT} has seen a stall in itself.",
        description=f'{_AGENT} counted {{{{ $value | printf "%.0f" }}}} stalls while in phase '
        "{{ $labels.phase }}.",
        threshold=f"a stall within 10 min: ≥ {clocks.idle_seconds:g} s idle, {clocks.llm_seconds:g} s in a "
        f"model call, {clocks.tool_seconds:g} s in a tool (`health_monitoring.stall`, counted by the worker)",
        reason="four minutes inside a tool are nothing, between steps they are much: each phase has its clock"
        "",
        dashboard=_DASHBOARD,
    )


def _retry_storms(settings: HealthSettings, selectors: Selectors) -> Iterator[Alert]:
    bands = settings.bands
    bad_steps = f"max {BY_WORKER} ({select(selectors, names.WORKER_STEPS_SINCE_ACCEPT)})"
    ranges: tuple[tuple[str, int, int | None, Severity], ...] = (
        ("medium", bands.medium, bands.high, "warning"),
        ("high", bands.high, bands.critical, "critical"),
        ("critical", bands.critical, None, "critical"),
    )
    for band, low, high, severity in ranges:
        below = f" < {high}" if high is not None else ""
        yield Alert(
            name="QueenrightRetryStorm",
            expr=f"{bad_steps} >= {low}{below}\n{UNLESS_WAITING}",
            for_="15s",
            severity=severity,
            source=SOURCE_RULES,
            labels={"ticket_severity": band},
            summary=f"{_AGENT} retries without getting anything accepted.",
            description=f"{_AGENT} has had {{{{ $value | humanize }}}} bad steps since its last ACCEPT.",
            threshold=f"≥ {low} bad steps since the last ACCEPT (`health_monitoring.bands.{band}`)",
            reason="steps that are rejected again and again cost as much as good ones and bring nothing",
            dashboard=_DASHBOARD,
        )


def _loop(settings: HealthSettings, selectors: Selectors) -> Alert:
    calls = select(selectors, names.WORKER_TOOL_CALLS)
    progress = select(selectors, names.WORKER_LAST_PROGRESS)
    without = settings.stall.unknown_seconds
    window = duration(max(without, SHORTEST_WINDOW))
    return Alert(
        name="QueenrightLoop",
        why="Progress is an ACCEPT, a checkpoint, or a tool result not seen before. Many calls and none of "
        "these is what a loop looks like from outside; which call it is, the judge finds.",
        expr=f"sum {BY_WORKER} (increase({calls}[{window}])) >= {settings.bands.warning}\n"
        f"and {ON_WORKER}\n"
        f"time() - max {BY_WORKER} ({progress}) >= {without:g}\n"
        f"{UNLESS_WAITING}",
        for_="30s",
        severity="critical",
        source=SOURCE_RULES,
        summary=f"{_AGENT} is busy and gets nowhere.",
        description=f'{_AGENT} has made {{{{ $value | printf "%.0f" }}}} tool calls in {in_words(without)} '
        "without any progress.",
        threshold=f"≥ {settings.bands.warning} tool calls (`health_monitoring.bands.warning`) and no "
        f"progress for {without:g} s (`health_monitoring.stall.unknown_seconds`)",
        reason="activity without progress is what a heartbeat never shows",
        dashboard=_DASHBOARD,
    )


def _heartbeat(settings: HealthSettings) -> Alert:
    silent = settings.heartbeat.timeout_seconds
    return Alert(
        name="QueenrightHeartbeatMissing",
        why="A worker that waits still has a heart: no exception for it.",
        expr=f"time() - {HEARTBEAT} >= {silent:g}",
        for_="30s",
        severity="critical",
        source=SOURCE_RULES,
        summary=f"{_AGENT} sends no heartbeats.",
        description="The last heartbeat of agent {{ $labels.agent }} was "
        "{{ $value | humanizeDuration }} ago.",
        threshold=f"≥ {silent:g} s without a heartbeat (`health_monitoring.heartbeat.timeout_seconds`)",
        reason="two beats were missed: its process is gone, frozen or cut off",
        dashboard=_DASHBOARD,
    )


def _checkpoints(settings: HealthSettings) -> Iterator[Alert]:
    old = settings.health_check.checkpoint_degraded_seconds
    stale = settings.health_check.checkpoint_stale_threshold_seconds
    bands: tuple[tuple[Severity, str, str, str], ...] = (
        ("warning", f">= {old:g} < {stale:g}", f"≥ {old:g} s", "checkpoint_degraded_seconds"),
        ("critical", f">= {stale:g}", f"≥ {stale:g} s", "checkpoint_stale_threshold_seconds"),
    )
    for severity, limit, said, setting in bands:
        yield Alert(
            name="QueenrightCheckpointStale",
            why="Only for workers that save their state at all; one that never did has no series, or 0.",
            expr=f"time() - ({CHECKPOINT} > 0) {limit}\n{UNLESS_WAITING}",
            for_="30s",
            severity=severity,
            source=SOURCE_RULES,
            summary=f"{_AGENT} has not saved its state for too long.",
            description=f"{_AGENT} saved its state {{{{ $value | humanizeDuration }}}} ago; if it dies now, "
            "what it did since is lost.",
            threshold=f"{said} since the last checkpoint (`health_monitoring.health_check.{setting}`)",
            reason="what was not saved is done again after a crash, and a worker that stopped saving is "
            "often stuck",
            dashboard=_DASHBOARD,
        )


def _errors(settings: HealthSettings) -> Alert:
    share, minimum = settings.rules.tool_error_share, settings.loops.error_streak
    return Alert(
        name="QueenrightErrorRate",
        why="One failed call of one is no rate. What a worker left behind when it ended is no rate either: "
        "its other series must still be there.",
        expr=f"{TOOL_ERRORS} > {share:g}\n"
        f"and {ON_WORKER}\n"
        f"300 * sum {BY_WORKER} ({TOOL_CALLS}) >= {minimum}\n"
        f"and {ON_WORKER} {ACTIVITY}\n"
        f"{UNLESS_WAITING}",
        for_="2m",
        keep_firing_for="5m",
        severity="warning",
        source=SOURCE_RULES,
        summary="Most tool calls of agent {{ $labels.agent }} fail."
        if share == 0.5
        else "Too many tool calls of agent {{ $labels.agent }} fail.",
        description="{{ $value | humanizePercentage }} of the tool calls of agent {{ $labels.agent }} failed "
        "in the last 5 minutes.",
        threshold=f"> {share:.0%} (`health_monitoring.rules.tool_error_share`) of at least {minimum} calls "
        "(`health_monitoring.loops.error_streak`) in 5 min",
        reason="tools that fail mostly are down, or the worker uses them wrongly",
        dashboard=_DASHBOARD,
    )


def _tokens(settings: HealthSettings) -> Alert:
    factor, minimum = settings.loops.token_spike_factor, settings.loops.token_spike_minimum
    return Alert(
        name="QueenrightTokenRate",
        why="Usual is the average of the last six hours while it used any, and it must have been there an "
        "hour ago: a worker that has just begun has no usual. A multiple of little is little.",
        expr=f"{TOKENS} >= {factor:g} * {USUAL_TOKENS}\n"
        "and\n"
        f"600 * {TOKENS} >= {minimum}\n"
        f"and {TOKENS} offset 1h\n"
        f"and {ON_WORKER} {ACTIVITY}\n"
        f"{UNLESS_WAITING}",
        for_="1m",
        keep_firing_for="5m",
        severity="warning",
        source=SOURCE_RULES,
        summary=f"{_AGENT} uses far more tokens than usual.",
        description=f"{_AGENT} uses {{{{ $value | humanize }}}} tokens a second, at least {factor:g} times "
        "what it used in the last six hours.",
        threshold=f"≥ {factor:g} x the usual (`health_monitoring.loops.token_spike_factor`) and ≥ {minimum} "
        "tokens in 10 min (`.token_spike_minimum`)",
        reason="a context that grows without end, or a loop, is first seen in what it costs",
        dashboard=_DASHBOARD,
    )


def _waiting(settings: HealthSettings, selectors: Selectors) -> Alert:
    waits = select(selectors, names.WORKER_WAITING, f'reason="{WaitingReason.USER_INPUT}"')
    seconds = settings.rules.waiting_for_user_seconds
    return Alert(
        name="QueenrightWaitingForUser",
        why="Nothing is wrong with the worker: somebody has not answered. Quiet, and never a stall.",
        expr=f"max by (agent) ({waits}) == 1",
        for_=duration(seconds),
        severity="info",
        source=SOURCE_RULES,
        summary=f"{_AGENT} waits for an answer.",
        description=f"{_AGENT} has been waiting for a user for more than {in_words(seconds)}.",
        threshold=f"{in_words(seconds)} of waiting (`health_monitoring.rules.waiting_for_user_seconds`)",
        reason="a question that nobody saw stops the work as surely as a fault",
        dashboard=_DASHBOARD,
    )
