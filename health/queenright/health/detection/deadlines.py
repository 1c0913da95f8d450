"""
The times at which a worker's findings change although no event arrives.

Detectors compare ``now`` with the same times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from queenright.health.detection.spending import DAY
from queenright.health.detection.stall_clock import find_silence_start, find_stall_clock, may_be_silent
from queenright.health.findings import FindingKind
from queenright.health.settings import HealthSettings
from queenright.health.severity_bands import CRITICAL_AFTER, HIGH_AFTER
from queenright.health.vitals.activity import get_tool_time_limit
from queenright.health.vitals.vital_signs import OpenTool, VitalSigns
from queenright.instrumentation.names import Phase, WaitingReason

OUTPUT_UNCHANGED_SECONDS: Final = 1800.0
"""Seconds without a changed file or test result after which there is a finding. It opens no ticket."""
OUTPUT_UNCHANGED_REPORTS: Final = 3
"""
The number of identical reports required, because two may be the end of one change and the start of the next.
"""


class DetectorClock(NamedTuple):
    """
    When the clock of a detector starts, and when the detector fires. Times are in seconds since the epoch.
    """

    kind: FindingKind
    since: float
    due: float


class ProcessSign(NamedTuple):
    """The last sign that a process is running. Times are in seconds since the epoch."""

    at: float
    work_at: float = 0.0
    """When the process last reported open work."""
    interval: float | None = None
    """The seconds between these reports, or None if unknown."""


def find_heartbeat_deadline(v: VitalSigns, settings: HealthSettings) -> float | None:
    """Return when the heartbeat counts as missing; see ``Heartbeat.limit``."""
    if may_be_silent(v) or (v.last_heartbeat is None and v.heartbeat_interval is None):
        return None
    limit = settings.heartbeat.limit(v.heartbeat_interval)
    # Any activity shows that the process is running.
    return max(find_silence_start(v), v.last_heartbeat or 0.0) + limit


def may_have_ended(v: VitalSigns) -> bool:
    """Return whether a worker with heartbeats has sent nothing since an outage of the service."""
    return v.away is not None and (v.last_heartbeat is not None or v.heartbeat_interval is not None)


def has_shown_its_end(v: VitalSigns) -> bool:
    """
    Return whether a silent worker has certainly ended: it reported its end, or its heartbeats stopped.

    A silent worker that never sent heartbeats may still be alive, and hang in a call.
    """
    return v.ended_at is not None or v.last_heartbeat is not None


def find_death_time(v: VitalSigns, settings: HealthSettings) -> float | None:
    """
    Return when a silent worker counts as dead, or None if it waits or has ended.

    A worker without heartbeats may hang in a long call: its heartbeat timeout is added to its stall limit.
    """
    if sends_heartbeats(v):
        return find_heartbeat_deadline(v, settings)
    clock = find_stall_clock(v, settings)
    return None if clock is None else clock.ticket_due + settings.heartbeat.timeout_seconds


def sends_heartbeats(v: VitalSigns) -> bool:
    """Return whether the worker sends heartbeats, or announced them."""
    return v.last_heartbeat is not None or v.heartbeat_interval is not None


def find_end_time(v: VitalSigns, settings: HealthSettings, sign: ProcessSign) -> float | None:
    """
    Return when a silent worker counts as ended. None in the same cases as ``find_death_time``.

    A worker that waits for a person and sends no heartbeats counts as ended after ``dead_worker_seconds``,
    because the laptop may be closed. For a foreign run, ``sign`` shows whether its process is alive. A
    process that stopped reporting open work is gone. A process that sends anything is alive, so its open
    calls still hang. Otherwise a run with open work ends after ``dead_worker_seconds``, and one without
    counts as abandoned.
    """
    death_time = find_death_time(v, settings)
    if v.waiting is WaitingReason.USER_INPUT and v.ended_at is None and not sends_heartbeats(v):
        return max(find_silence_start(v), sign.at) + settings.tickets.dead_worker_seconds
    if death_time is None or not v.is_foreign or sends_heartbeats(v):
        return None if death_time is None else death_time + settings.tickets.dead_worker_seconds
    has_open_work = v.phase in (Phase.LLM, Phase.TOOL)
    if has_open_work and sign.interval is not None:
        return max(sign.work_at, find_silence_start(v)) + settings.heartbeat.limit(sign.interval)
    tickets = settings.tickets
    grace_seconds = tickets.dead_worker_seconds if has_open_work else tickets.abandoned_run_seconds
    return max(death_time, sign.at) + grace_seconds


def find_checkpoint_start(v: VitalSigns) -> float | None:
    """
    Return the time from which the checkpoint's age counts.

    Return None if the worker makes no checkpoints or may be silent. Time in tools does not count, because a
    worker cannot save a checkpoint during a call.
    """
    if may_be_silent(v) or v.saved_from is None:
        return None
    return max(v.saved_from, v.clock_base)


def find_checkpoint_deadline(v: VitalSigns, limit: float) -> float | None:
    """
    Return when the checkpoint is ``limit`` seconds old; see ``find_checkpoint_start``.

    During a tool call, the age does not grow until the tool's declared timeout or usual duration has passed:
    a tool that hangs is a stall.
    """
    since = find_checkpoint_start(v)
    if since is None:
        return None
    due_at, tool = since + limit, v.open_tool
    if tool is not None and due_at > tool.started:
        due_at += get_tool_time_limit(v, tool)
    return due_at


def find_no_tool_call_start(v: VitalSigns) -> float | None:
    """
    Return the time of the last tool call, other progress, or user message.

    Return None if the worker never called a tool (it may have none), is running one, or may be silent.
    """
    if may_be_silent(v) or v.last_tool_call is None or v.open_tools:
        return None
    return max(v.last_tool_call, v.progress_from or 0.0, v.last_gain_at, v.clock_base)


def find_next_tool_timeout(v: VitalSigns) -> OpenTool | None:
    """Return the open call whose declared timeout ends first, or None if no open call declared one."""
    tool = v.open_tool
    if tool is None or tool.timeout is None or may_be_silent(v):
        return None
    return tool


def find_no_tokens_start(v: VitalSigns) -> float | None:
    """
    Return the time since which no tokens were used.

    Return None if the worker reports no tokens, is running a tool, or may be silent. Time in tools does not
    count.
    """
    if may_be_silent(v) or v.tokens_from is None or v.open_tools:
        return None
    return max(v.tokens_from, v.clock_base)


def find_unchanged_output_start(v: VitalSigns, settings: HealthSettings) -> float | None:
    """Return the time since which the worker reports the same output, or None before enough reports."""
    output = v.output
    if output is None or output.reports < OUTPUT_UNCHANGED_REPORTS or may_be_silent(v):
        return None
    return max(output.since, v.clock_base)


def find_grace_end(v: VitalSigns, settings: HealthSettings) -> float:
    """Return the end of the start grace, in which a new incarnation gets no ticket."""
    return v.incarnation_started + settings.judge.start_grace_seconds


def list_detector_clocks(v: VitalSigns, settings: HealthSettings) -> Iterator[DetectorClock]:
    """Yield the clock of each detector that fires if no event arrives."""
    clock = find_stall_clock(v, settings)
    if clock is not None:
        yield DetectorClock(FindingKind.STALL, clock.since, clock.due)
    tool = find_next_tool_timeout(v)
    if tool is not None and tool.timeout is not None:
        yield DetectorClock(FindingKind.TOOL_TIMEOUT, tool.started, tool.started + tool.timeout)
    heartbeat_due = find_heartbeat_deadline(v, settings)
    if heartbeat_due is not None:
        limit = settings.heartbeat.limit(v.heartbeat_interval)
        yield DetectorClock(FindingKind.HEARTBEAT_MISSING, heartbeat_due - limit, heartbeat_due)
    checkpoint_due = find_checkpoint_deadline(v, settings.health_check.checkpoint_degraded_seconds)
    if checkpoint_due is not None:
        yield DetectorClock(
            FindingKind.CHECKPOINT_STALE, find_checkpoint_start(v) or checkpoint_due, checkpoint_due
        )
    no_calls_since = find_no_tool_call_start(v)
    if no_calls_since is not None:
        yield DetectorClock(
            FindingKind.NO_TOOL_CALLS,
            no_calls_since,
            no_calls_since + settings.health_check.no_tool_call_seconds,
        )
    no_tokens_since = find_no_tokens_start(v)
    if no_tokens_since is not None:
        yield DetectorClock(
            FindingKind.NO_TOKENS, no_tokens_since, no_tokens_since + settings.health_check.no_tokens_seconds
        )
    unchanged_since = find_unchanged_output_start(v, settings)
    if unchanged_since is not None:
        yield DetectorClock(
            FindingKind.OUTPUT_UNCHANGED, unchanged_since, unchanged_since + OUTPUT_UNCHANGED_SECONDS
        )


def list_change_times(v: VitalSigns, settings: HealthSettings, sign: ProcessSign) -> Iterator[float]:
    """Yield every time, past or future, at which a worker's findings change although no event arrives."""
    for clock in list_detector_clocks(v, settings):
        yield clock.due
        # The severity or ticket of these findings changes again later.
        if clock.kind is FindingKind.STALL:
            stall = find_stall_clock(v, settings)
            if stall is not None:
                yield stall.ticket_due
            shadow_clock = settings.learned_clocks.mode == "shadow" and find_stall_clock(
                v, settings, shadow=True
            )
            if shadow_clock:
                yield shadow_clock.due
        elif clock.kind is FindingKind.NO_TOOL_CALLS:
            for multiple in (HIGH_AFTER, CRITICAL_AFTER):
                yield clock.since + multiple * settings.health_check.no_tool_call_seconds
        elif clock.kind is FindingKind.NO_TOKENS:
            if v.progress_from is not None and v.progress_from > clock.since:
                yield v.progress_from + settings.health_check.no_tokens_seconds
        elif clock.kind is FindingKind.CHECKPOINT_STALE:
            stale_at = find_checkpoint_deadline(v, settings.health_check.checkpoint_stale_threshold_seconds)
            if stale_at is not None:
                yield stale_at
    end_time = find_end_time(v, settings, sign)
    if end_time is not None:
        yield end_time
    if v.spent_today is not None and v.ended_at is None and settings.spending.is_on:
        yield (v.spent_today.day + 1) * DAY


def find_shortest_limit(settings: HealthSettings) -> float:
    """Return the shortest silence, in seconds, that can cause a finding, apart from declared timeouts."""
    stall, check = settings.stall, settings.health_check
    factor = 1.0 if settings.learned_clocks.mode == "off" else settings.learned_clocks.shortest
    return min(
        stall.idle_seconds * factor,
        stall.llm_seconds * factor,
        stall.tool_seconds * factor,
        stall.unknown_seconds * factor,
        check.checkpoint_degraded_seconds,
        check.checkpoint_stale_threshold_seconds,
        check.no_tool_call_seconds,
        check.no_tokens_seconds,
        OUTPUT_UNCHANGED_SECONDS,
    )
