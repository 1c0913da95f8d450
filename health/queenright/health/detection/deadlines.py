"""
Deadlines: when the passing of time changes the findings of a worker.

Detectors compare ``now`` with the same moments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from queenright.health.detection.spending import DAY
from queenright.health.detection.stall_clock import may_be_silent, silent_since, stall_clock
from queenright.health.findings import FindingKind
from queenright.health.settings import HealthSettings
from queenright.health.severity_bands import CRITICAL_AFTER, HIGH_AFTER
from queenright.health.vitals.activity import tool_time_limit
from queenright.health.vitals.vital_signs import OpenTool, VitalSigns
from queenright.instrumentation.names import Phase, WaitingReason

OUTPUT_UNCHANGED_SECONDS: Final = 1800.0
"""Seconds without a changed file or test result after which a worker is shown; no ticket follows."""
OUTPUT_UNCHANGED_REPORTS: Final = 3
"""Equal reports required; two may be the end of one change and the start of the next."""


class DetectorClock(NamedTuple):
    """When a detector of elapsed time fires, and since when it counts. Seconds since the epoch."""

    kind: FindingKind
    since: float
    due: float


class ProcessSign(NamedTuple):
    """The last sign that a process runs; times in seconds since the epoch."""

    at: float
    work_at: float = 0.0
    """When it last reported open work."""
    interval: float | None = None
    """The interval of such reports in seconds, or None."""


def heartbeat_due(v: VitalSigns, settings: HealthSettings) -> float | None:
    """Return when the heartbeat counts as missing; see ``Heartbeat.limit``."""
    if may_be_silent(v) or (v.last_heartbeat is None and v.heartbeat_interval is None):
        return None
    limit = settings.heartbeat.limit(v.heartbeat_interval)
    # Any activity shows that the process lives.
    return max(silent_since(v), v.last_heartbeat or 0.0) + limit


def may_have_ended(v: VitalSigns) -> bool:
    """Return whether a worker with heartbeats has not been heard since the service was away."""
    return v.away is not None and (v.last_heartbeat is not None or v.heartbeat_interval is not None)


def shows_its_end(v: VitalSigns) -> bool:
    """
    Return whether a silent worker has ended: it reported its end, or its heartbeats stopped.

    A silent worker without heartbeats may still be alive, and hang.
    """
    return v.ended_at is not None or v.last_heartbeat is not None


def silent_from(v: VitalSigns, settings: HealthSettings) -> float | None:
    """
    Return when a silent worker counts as dead; None for one that waits or has ended.

    A worker without heartbeats may hang in a long call: its heartbeat timeout is added to its stall limit.
    """
    if sends_heartbeats(v):
        return heartbeat_due(v, settings)
    clock = stall_clock(v, settings)
    return None if clock is None else clock.ticket_due + settings.heartbeat.timeout_seconds


def sends_heartbeats(v: VitalSigns) -> bool:
    """Return whether the worker sends heartbeats, or announced them."""
    return v.last_heartbeat is not None or v.heartbeat_interval is not None


def over_from(v: VitalSigns, settings: HealthSettings, sign: ProcessSign) -> float | None:
    """
    Return when a silent worker counts as ended; None in the same cases as ``silent_from``.

    A worker that waits for a person and sends no heartbeats counts as ended after ``dead_worker_seconds``:
    the laptop may be closed. For a foreign run, ``sign`` shows whether its process is alive. A process that
    stopped reporting open work is gone. A process that sends anything is alive, so its open calls still hang.
    Otherwise a run with open work ends after ``dead_worker_seconds``, and one without counts as abandoned.
    """
    silent = silent_from(v, settings)
    if v.waiting is WaitingReason.USER_INPUT and v.ended_at is None and not sends_heartbeats(v):
        return max(silent_since(v), sign.at) + settings.tickets.dead_worker_seconds
    if silent is None or not v.is_foreign or sends_heartbeats(v):
        return None if silent is None else silent + settings.tickets.dead_worker_seconds
    is_open = v.phase in (Phase.LLM, Phase.TOOL)
    if is_open and sign.interval is not None:
        return max(sign.work_at, silent_since(v)) + settings.heartbeat.limit(sign.interval)
    tickets = settings.tickets
    patience = tickets.dead_worker_seconds if is_open else tickets.abandoned_run_seconds
    return max(silent, sign.at) + patience


def checkpoint_from(v: VitalSigns) -> float | None:
    """
    Return when the checkpoint's age began; None for a worker that makes none or may be silent.

    The time in tools is taken out: nothing can be saved during a call.
    """
    if may_be_silent(v) or v.saved_from is None:
        return None
    return max(v.saved_from, v.clock_base)


def checkpoint_due(v: VitalSigns, limit: float) -> float | None:
    """
    Return when the checkpoint is ``limit`` seconds old; see ``checkpoint_from``.

    A tool with a declared timeout, or that usually takes long, stops the age for that time: a hang in it is a
    stall.
    """
    since = checkpoint_from(v)
    if since is None:
        return None
    due_at, tool = since + limit, v.open_tool
    if tool is not None and due_at > tool.started:
        due_at += tool_time_limit(v, tool)
    return due_at


def no_tool_call_from(v: VitalSigns) -> float | None:
    """
    Return since when there was no tool call, no other progress and no message of its user.

    None for a worker that never called a tool (it may have none), has one running, or may be silent.
    """
    if may_be_silent(v) or v.last_tool_call is None or v.open_tools:
        return None
    return max(v.last_tool_call, v.progress_from or 0.0, v.last_gain_at, v.clock_base)


def overdue_tool(v: VitalSigns) -> OpenTool | None:
    """Return the open call whose declared timeout ends first, if any declared one."""
    tool = v.open_tool
    if tool is None or tool.timeout is None or may_be_silent(v):
        return None
    return tool


def no_tokens_from(v: VitalSigns) -> float | None:
    """
    Return since when no tokens were used.

    None for a worker that reports none, has a tool running, or may be silent. The time in tools is taken out.
    """
    if may_be_silent(v) or v.tokens_from is None or v.open_tools:
        return None
    return max(v.tokens_from, v.clock_base)


def unchanged_from(v: VitalSigns, settings: HealthSettings) -> float | None:
    """Return since when the worker reports the same output; None before enough reports."""
    output = v.output
    if output is None or output.reports < OUTPUT_UNCHANGED_REPORTS or may_be_silent(v):
        return None
    return max(output.since, v.clock_base)


def grace_until(v: VitalSigns, settings: HealthSettings) -> float:
    """Return until when the incarnation gets no ticket."""
    return v.incarnation_started + settings.judge.start_grace_seconds


def detector_clocks(v: VitalSigns, settings: HealthSettings) -> Iterator[DetectorClock]:
    """Yield the clock of each detector that fires after a time, if nothing happens until then."""
    clock = stall_clock(v, settings)
    if clock is not None:
        yield DetectorClock(FindingKind.STALL, clock.since, clock.due)
    tool = overdue_tool(v)
    if tool is not None and tool.timeout is not None:
        yield DetectorClock(FindingKind.TOOL_TIMEOUT, tool.started, tool.started + tool.timeout)
    heartbeat = heartbeat_due(v, settings)
    if heartbeat is not None:
        limit = settings.heartbeat.limit(v.heartbeat_interval)
        yield DetectorClock(FindingKind.HEARTBEAT_MISSING, heartbeat - limit, heartbeat)
    checkpoint = checkpoint_due(v, settings.health_check.checkpoint_degraded_seconds)
    if checkpoint is not None:
        yield DetectorClock(FindingKind.CHECKPOINT_STALE, checkpoint_from(v) or checkpoint, checkpoint)
    calls = no_tool_call_from(v)
    if calls is not None:
        yield DetectorClock(
            FindingKind.NO_TOOL_CALLS, calls, calls + settings.health_check.no_tool_call_seconds
        )
    tokens = no_tokens_from(v)
    if tokens is not None:
        yield DetectorClock(FindingKind.NO_TOKENS, tokens, tokens + settings.health_check.no_tokens_seconds)
    output = unchanged_from(v, settings)
    if output is not None:
        yield DetectorClock(FindingKind.OUTPUT_UNCHANGED, output, output + OUTPUT_UNCHANGED_SECONDS)


def moments(v: VitalSigns, settings: HealthSettings, sign: ProcessSign) -> Iterator[float]:
    """Yield every moment, past or future, at which time alone changes a worker's findings."""
    for clock in detector_clocks(v, settings):
        yield clock.due
        # What the detector finds changes again later.
        if clock.kind is FindingKind.STALL:
            stall = stall_clock(v, settings)
            if stall is not None:
                yield stall.ticket_due
            shadow = settings.learned_clocks.mode == "shadow" and stall_clock(v, settings, shadow=True)
            if shadow:
                yield shadow.due
        elif clock.kind is FindingKind.NO_TOOL_CALLS:
            for times in (HIGH_AFTER, CRITICAL_AFTER):
                yield clock.since + times * settings.health_check.no_tool_call_seconds
        elif clock.kind is FindingKind.NO_TOKENS:
            if v.progress_from is not None and v.progress_from > clock.since:
                yield v.progress_from + settings.health_check.no_tokens_seconds
        elif clock.kind is FindingKind.CHECKPOINT_STALE:
            stale = checkpoint_due(v, settings.health_check.checkpoint_stale_threshold_seconds)
            if stale is not None:
                yield stale
    over = over_from(v, settings, sign)
    if over is not None:
        yield over
    if v.spent_today is not None and v.ended_at is None and settings.spending.is_on:
        yield (v.spent_today.day + 1) * DAY


def shortest_limit(settings: HealthSettings) -> float:
    """Return the shortest silence in seconds that can matter, apart from declared timeouts."""
    stall, check = settings.stall, settings.health_check
    part = 1.0 if settings.learned_clocks.mode == "off" else settings.learned_clocks.shortest
    return min(
        stall.idle_seconds * part,
        stall.llm_seconds * part,
        stall.tool_seconds * part,
        stall.unknown_seconds * part,
        check.checkpoint_degraded_seconds,
        check.checkpoint_stale_threshold_seconds,
        check.no_tool_call_seconds,
        check.no_tokens_seconds,
        OUTPUT_UNCHANGED_SECONDS,
    )
