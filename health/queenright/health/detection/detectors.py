"""
Detectors: pure functions from vital signs to findings.

They never read a clock, so a recorded run produces the findings of the live run. Each
returns a finding with evidence, or None. ``tests/detection/README.md`` gives the reasons
for the thresholds, and how well they detect.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from queenright.health.detection.deadlines import OUTPUT_UNCHANGED_REPORTS, find_grace_end
from queenright.health.detection.health_state import describe_failed_runs
from queenright.health.detection.spending import detect_spending
from queenright.health.detection.stall_detectors import (
    detect_checkpoint_stale,
    detect_heartbeat_missing,
    detect_no_tokens,
    detect_no_tool_calls_for_long,
    detect_output_unchanged,
    detect_stall,
    detect_stall_by_learned_clock,
    detect_tool_timeout,
    format_span,
)
from queenright.health.findings import KINDS_AFTER_END, Finding, FindingKind, Severity
from queenright.health.settings import HealthSettings
from queenright.health.severity_bands import CRITICAL_AFTER, get_high_limit, rate_count
from queenright.health.vitals.calls import Repeat
from queenright.health.vitals.progress import TOKENS, TOKENS_COUNTED_AS
from queenright.health.vitals.resource_limits import detect_answers_cut, detect_resource_limit
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_facts import CONTEXT_FULL, McpServerState, classify_failure
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.instrumentation.error_class import SHELL_REFUSED
from queenright.instrumentation.redaction import redact

_ERROR_LIMIT: Final = 200
"""Maximum number of characters of an error text in evidence."""
_GRINDING_CALLS: Final = 60
"""Three windows of calls. A working agent changes something in fewer calls."""
_TOKEN_BURN_FACTOR: Final = 3.0
"""The factor on the 99th percentile of tokens per change, as for learned clocks."""
_TOKEN_BURN_MINIMUM: Final = 200_000
"""Tokens below which there is no finding, even if the agent usually uses far fewer."""
_MCP_SERVER_SECONDS: Final = 60.0
"""A client that exits disconnects its servers. A client that continues for this long works without them."""

Detector = Callable[[VitalSigns, HealthSettings, float], Finding | None]


def detect(v: VitalSigns, settings: HealthSettings, now: float) -> list[Finding]:
    """
    Return the findings about a worker at ``now``, at most one of each kind.

    Only detectors that are on run; ``detect_shadow`` runs those in shadow mode.

    During the start grace of an incarnation, findings open no ticket. The exceptions are a failed recovery
    and failed runs, because they concern earlier incarnations. A session that has ended can have only these
    two findings, and a finding without a ticket if it ended in a failed LLM call.
    """
    findings = _run_detectors(v, settings, now, settings.active_kinds)
    if findings and now < find_grace_end(v, settings):
        return [
            finding._replace(ticket=False)
            if finding.ticket and finding.kind not in KINDS_AFTER_END
            else finding
            for finding in findings
        ]
    return findings


def detect_shadow(v: VitalSigns, settings: HealthSettings, now: float) -> list[Finding]:
    """Return the findings of the detectors in shadow mode. None of them opens a ticket."""
    if not settings.has_shadows:
        return []
    findings = _run_detectors(v, settings, now, settings.shadow_kinds)
    has_trial_clock = v.clocks is not None and settings.learned_clocks.mode == "shadow"
    if has_trial_clock and settings.acts_on(FindingKind.STALL):
        trial = detect_stall_by_learned_clock(v, settings, now)
        findings += [] if trial is None else [trial]
    return [finding._replace(ticket=False, shadow=True) for finding in findings]


def _run_detectors(
    v: VitalSigns, settings: HealthSettings, now: float, kinds: frozenset[FindingKind]
) -> list[Finding]:
    findings = []
    for detector in _select_detectors(kinds, v.ended_at is not None):
        finding = detector(v, settings, now)
        if finding is not None:
            findings.append(finding)
    return findings


@lru_cache(256)
def _select_detectors(kinds: frozenset[FindingKind], has_ended: bool) -> tuple[Detector, ...]:
    """Return the detectors of these kinds that apply to a running session, or to an ended session."""
    candidates = _ENDED_RUN_DETECTORS if has_ended else DETECTORS.items()
    return tuple(detector for kind, detector in candidates if kind in kinds)


def is_suspicious(v: VitalSigns, settings: HealthSettings) -> bool:
    """
    Return whether a detector that counts events, rather than time, may have a finding. This check is cheap.
    """
    loops = settings.loops
    return (
        v.steps_since_last_accept >= settings.bands.warning
        # This runs on every event. Some limits are computed, so they are read only if their count is above 0.
        or (v.stale_calls > 0 and v.stale_calls >= loops.stale_calls)
        or has_mostly_known_results(v, settings)
        or (v.fruitless > 0 and v.fruitless >= loops.fruitless_calls)
        or (bool(v.refusals) and _detect_refusals(v, settings) is not None)
        or v.idle_turns >= loops.idle_turns
        or (v.polls > 0 and _has_polled_too_long(v, settings))
        or (
            v.recorded_results >= loops.minimum_results
            and v.stale_results >= loops.known_results_share * v.recorded_results
        )
        or v.streak >= loops.error_streak
        or v.failed_calls >= settings.bands.warning
        or v.llm_errors >= loops.provider_failures
        or v.cut_answers.answers >= loops.provider_failures
        or bool(v.resources)
        or (v.cost_usd is not None and settings.spending.is_on)
        or bool(v.breakers)
        or v.token_spike > 0.0
        or v.calls_since_gain >= _GRINDING_CALLS
        or v.tokens_since_gain >= _TOKEN_BURN_MINIMUM
        or v.error_rate_high
        or (bool(v.mcp_servers) and bool(list_missing_mcp_servers(v, settings)))
        or (v.output is not None and v.output.reports >= OUTPUT_UNCHANGED_REPORTS)
        or v.consecutive_failures > settings.health_check.consecutive_failures
        or (
            v.calls is not None
            # ``peak`` includes the rounds of a cycle, which have the limit of consecutive repeats.
            and ((peak := v.calls.peak) >= loops.consecutive or peak >= loops.repeats)
        )
    )


def detect_recovery_failed(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker whose recovery was abandoned and that has made no progress since."""
    if not v.recovery_failed:
        return None
    evidence = f"it could not be recovered: {v.recovery_failed}"
    since = v.recovery_failed_at or v.last_activity
    return Finding.of(FindingKind.RECOVERY_FAILED, Severity.CRITICAL, evidence, since)


def detect_runs_failed(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find an agent whose runs failed in a row, until one completes or a person resolves the ticket."""
    if v.failed_runs <= settings.health_check.consecutive_failures:
        return None
    return Finding.of(FindingKind.RUNS_FAILED, Severity.HIGH, describe_failed_runs(v), v.runs_failed_since)


def detect_circuit_breaker_open(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find the worker's open circuit breakers, or the half-open ones if none is open."""
    if not v.breakers:
        return None
    names = v.breakers.open or v.breakers.half_open
    # A breaker's name may contain a tool name, which the worker chose.
    listed_names = redact(", ".join(names[:3]), 300) + (
        f" and {len(names) - 3} more" if len(names) > 3 else ""
    )
    evidence = f"circuit breaker {'open' if v.breakers.open else 'half open'}: {listed_names}"
    severity = Severity.MEDIUM if v.breakers.open else Severity.LOW
    return Finding.of(FindingKind.CIRCUIT_BREAKER_OPEN, severity, evidence, v.breakers_since, ticket=False)


def detect_provider_failure(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find consecutive LLM API errors. The provider causes them, not the agent."""
    limit = settings.loops.provider_failures
    if v.llm_errors < limit or v.llm_error == CONTEXT_FULL:
        return None
    evidence = f"{v.llm_errors} LLM calls failed in a row, last with {_describe_error(v, v.llm_error)}"
    severity = rate_count(v.llm_errors, limit, settings)
    return Finding.of(FindingKind.PROVIDER_FAILURE, severity, evidence, v.llm_error_since)


def _describe_error(v: VitalSigns, error: str) -> str:
    """Return the text of the last error if ``error`` is its abbreviated class, otherwise ``error``."""
    texts = v.evidence, v.evidence.partition(": ")[2]  # with and without the exception's name
    if "~" not in error or all(classify_failure("", text) != error for text in texts):
        return error
    return redact(" ".join(v.evidence.split()), _ERROR_LIMIT)


def detect_end_in_llm_error(v: VitalSigns) -> Finding | None:
    """
    Find an ended run whose last LLM call failed.

    One failed call is enough: clients retry for minutes before they report it.
    """
    if not v.llm_errors:
        return None
    is_context_full = v.llm_error == CONTEXT_FULL
    calls = "a failed LLM call" if v.llm_errors == 1 else f"{v.llm_errors} failed LLM calls"
    evidence = f"the run ended in {calls}, last with {_describe_error(v, v.llm_error)}"
    since = v.llm_error_since
    return Finding.of(
        FindingKind.CONTEXT_EXHAUSTED if is_context_full else FindingKind.PROVIDER_FAILURE,
        Severity.MEDIUM,
        evidence,
        since,
        ticket=False,
    )


def _make_ended_run_detector(kind: FindingKind) -> Detector:
    """Return the detector of ``kind`` for runs that have ended. Its findings open no ticket."""

    def detector(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
        finding = detect_end_in_llm_error(v) if v.status is WorkerStatus.FAILED else None
        return finding if finding is not None and finding.kind is kind else None

    return detector


def detect_context_exhausted(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker whose model calls or answers repeatedly exceed the limits of its model."""
    limit = settings.loops.provider_failures
    if v.llm_errors < limit or v.llm_error != CONTEXT_FULL:
        return detect_answers_cut(v.cut_answers, settings)
    evidence = f"{v.llm_errors} LLM calls in a row exceeded the model's context window"
    severity = rate_count(v.llm_errors, limit, settings)
    return Finding.of(FindingKind.CONTEXT_EXHAUSTED, severity, evidence, v.llm_error_since)


def detect_doom_loop(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find repeats of one call with the same result: in a row, in a cycle, or among other calls."""
    loops = settings.loops
    if v.calls is None or v.calls.peak < min(loops.consecutive, loops.cycles, loops.repeats):
        return None
    worst: Repeat | None = None
    severity = Severity.LOW
    for repeat in v.calls.repeats():
        repeat_severity = _rate_repeat(repeat, settings)
        if repeat_severity is not None and (worst is None or repeat_severity.rank > severity.rank):
            worst, severity = repeat, repeat_severity
    if worst is None:
        return None
    is_loop = _is_loop(worst, settings)
    evidence = _describe_loop(worst, settings) if is_loop else _describe_repeat_after_changes(worst)
    return Finding.of(FindingKind.DOOM_LOOP, severity, evidence, worst.since)


def _is_loop(repeat: Repeat, settings: HealthSettings) -> bool:
    loops = settings.loops
    if repeat.is_blind:
        return repeat.run >= loops.blind_repeats
    return (
        repeat.run >= loops.consecutive
        or repeat.in_window >= loops.repeats
        or (repeat.period > 1 and repeat.cycles >= loops.cycles)
    )


def _rate_repeat(repeat: Repeat, settings: HealthSettings) -> Severity | None:
    loops = settings.loops
    if _is_loop(repeat, settings):
        return rate_count(repeat.times, loops.repeats, settings, loops.repeats_high)
    if repeat.is_blind or repeat.across_changes < loops.repeats_at_all:
        return None
    # An agent that runs a check after each change repeats it too, so there is no ticket. There is a ticket,
    # but no page, if every check fails (something else may cause that) or if no call is known to have
    # changed anything.
    is_ticket = repeat.is_failure or repeat.unchanged >= loops.repeats_at_all
    return Severity.MEDIUM if is_ticket else Severity.LOW


def _describe_loop(repeat: Repeat, settings: HealthSettings) -> str:
    same_parts = "arguments" if repeat.is_edit else "arguments and result"
    if repeat.is_blind:
        description = f"{repeat.run} times in a row with the same arguments (its results are not reported)"
    elif repeat.period > 1 and repeat.cycles >= settings.loops.cycles:
        # Changes do not interrupt the rounds of a cycle, so they may outnumber the repeats.
        times = max(repeat.times, repeat.cycles)
        description = f"{times} times with the same {same_parts}, in a cycle of {repeat.period} calls"
    else:
        times = max(repeat.times, repeat.run)
        description = f"{times} times with the same {same_parts}"
        if repeat.run > 1:
            description += " in a row" if repeat.run == times else f", the last {repeat.run} in a row"
    return f"{repeat.tool} was called {description}"


def _describe_repeat_after_changes(repeat: Repeat) -> str:
    answer = "failed in the same way" if repeat.is_failure else "gave the same answer"
    return f"{repeat.tool} {answer} {repeat.across_changes} times for the same arguments, even after changes"


def detect_error_streak(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """
    Find consecutive failed calls of one tool with one error class, or a higher number of failed calls of any
    tools.
    """
    limit = settings.loops.error_streak
    all_tools_severity = _rate_failed_calls(v, settings)
    refusal = _detect_refusals(v, settings) if v.refusals else None
    if refusal is not None and (
        all_tools_severity is None or refusal.severity.rank >= all_tools_severity.rank
    ):
        return refusal
    severity = None
    if v.streak >= limit:
        # A tool that reports a missing item works as intended.
        severity = Severity.MEDIUM if v.streak_is_missing else rate_count(v.streak, limit, settings)
    if severity is not None and (all_tools_severity is None or severity.rank >= all_tools_severity.rank):
        evidence = (
            f"{v.streak_tool} failed {v.streak} times in a row with {_describe_error(v, v.streak_error)}"
        )
        return Finding.of(FindingKind.ERROR_STREAK, severity, evidence, v.streak_since)
    if all_tools_severity is None:
        return None
    since = v.failing_since or v.last_activity
    evidence = (
        f"tool calls failed {v.failed_calls} times in a row in {format_span(v.last_activity - since)}, "
        f"the last of {v.streak_tool} with {_describe_error(v, v.streak_error)}"
    )
    return Finding.of(FindingKind.ERROR_STREAK, all_tools_severity, evidence, since)


def _detect_refusals(v: VitalSigns, settings: HealthSettings) -> Finding | None:
    """
    Find recent refusals of edits, submissions or commands with one error class, or a higher number with
    several.
    """
    loops, call = settings.loops, v.tool_calls_total
    recent = [(refusal.count_recent(call, loops.window), refusal) for refusal in v.refusals]
    times, refusal = max(recent, key=lambda entry: entry[0])
    if times >= loops.refused_changes:
        edits = f"edits or submissions failed with {_describe_error(v, refusal.error)}"
        refused = "commands were refused by the shell" if refusal.error == SHELL_REFUSED else edits
        evidence = f"{refusal.times} {refused} since a change succeeded"
        severity = rate_count(refusal.times, loops.refused_changes, settings)
        return Finding.of(FindingKind.ERROR_STREAK, severity, evidence, refusal.since)
    times, limit = sum(times for times, _ in recent), get_high_limit(loops.refused_changes)
    if times < limit:
        return None
    evidence = (
        f"{times} edits, submissions or commands were refused since a change succeeded, "
        f"the last with {_describe_error(v, v.refusals[0].error)}"
    )
    severity = rate_count(times, limit, settings)
    since = min(refusal.since for _, refusal in recent)
    return Finding.of(FindingKind.ERROR_STREAK, severity, evidence, since)


def _rate_failed_calls(v: VitalSigns, settings: HealthSettings) -> Severity | None:
    """Return the severity of consecutive failed calls, by their number or duration."""
    if v.failing_since is None or v.failed_calls < get_failed_calls_limit(v, settings):
        return None
    return Severity.CRITICAL if v.failed_calls >= settings.bands.critical else Severity.HIGH


def get_failed_calls_limit(v: VitalSigns, settings: HealthSettings) -> int:
    """
    Return how many consecutive failed calls of any tools are a finding. Fewer suffice if they took long.
    """
    if v.failing_since is None:
        return settings.bands.high
    # The duration is measured between events, so that only events change the limit. Waiting does not count.
    duration = v.last_activity - max(v.failing_since, v.clock_base)
    is_long = duration >= settings.health_check.no_tool_call_seconds
    return settings.bands.warning if is_long else settings.bands.high


def detect_retry_storm(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker with many bad steps since the last ACCEPT."""
    bad_steps, bands = v.steps_since_last_accept, settings.bands
    if bad_steps < bands.warning:
        return None
    severity = Severity.LOW
    if bad_steps >= bands.critical:
        severity = Severity.CRITICAL
    elif bad_steps >= bands.high:
        severity = Severity.HIGH
    elif bad_steps >= bands.medium and 2 * v.bad_repeats >= bad_steps:
        severity = Severity.MEDIUM
    evidence = f"{bad_steps} bad steps since the last ACCEPT, {v.bad_repeats or 'none'} of them repeats"
    return Finding.of(FindingKind.RETRY_STORM, severity, evidence, v.bad_since)


def detect_zero_progress(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """
    Find tool calls that return nothing new.

    These open a ticket: an unbroken series of repeated results and known errors, a majority of such results
    since the last change, many searches without a result, and long polling. These do not: fewer such
    searches, and a majority of known results among the recent calls.
    """
    loops = settings.loops
    findings: list[Finding] = []
    if v.stale_calls >= loops.stale_calls:
        severity = rate_count(v.stale_calls, loops.stale_calls, settings)
        evidence = f"the last {v.stale_calls} tool calls returned nothing new"
        findings.append(Finding.of(FindingKind.ZERO_PROGRESS, severity, evidence, v.stale_since))
    is_high = bool(findings) and findings[0].severity.rank >= Severity.HIGH.rank
    if not is_high and has_mostly_known_results(v, settings):
        evidence = (
            f"most of {v.results_since_gain} tool calls since the last change failed or returned nothing new"
        )
        findings.append(Finding.of(FindingKind.ZERO_PROGRESS, Severity.HIGH, evidence, v.last_gain_at))
    if v.fruitless >= loops.fruitless_calls:
        # An empty result may be the desired one, as in a check of many names. This never pages.
        severity = Severity.MEDIUM if v.fruitless >= 2 * loops.fruitless_calls else Severity.LOW
        evidence = f"{v.fruitless} new searches or reads found nothing"
        findings.append(Finding.of(FindingKind.ZERO_PROGRESS, severity, evidence, v.fruitless_since))
    if _has_polled_too_long(v, settings):
        wait = v.active_for - v.polls_from
        evidence = f"it has polled for {format_span(wait)} and got the same result {v.polls} times"
        # A queue may take hours, and waiting does no harm.
        is_very_long = wait >= CRITICAL_AFTER * settings.health_check.polling_seconds
        severity = Severity.HIGH if is_very_long else Severity.MEDIUM
        findings.append(Finding.of(FindingKind.ZERO_PROGRESS, severity, evidence, v.polls_since))
    if findings:
        return findings[0] if len(findings) == 1 else max(findings, key=lambda finding: finding.severity.rank)
    if (
        v.recorded_results < loops.minimum_results
        or v.stale_results < loops.known_results_share * v.recorded_results
    ):
        return None
    evidence = f"few of the last {v.recorded_results} tool calls returned anything new"
    return Finding.of(FindingKind.ZERO_PROGRESS, Severity.LOW, evidence, v.last_progress or v.started_at)


def has_mostly_known_results(v: VitalSigns, settings: HealthSettings) -> bool:
    """Return whether most results since the last change are repeats or failures, not necessarily in a row."""
    loops, stale_results = settings.loops, v.stale_results_since_gain
    return (
        stale_results > 0
        and stale_results >= loops.known_results
        and stale_results >= loops.known_results_share * v.results_since_gain
    )


def _has_polled_too_long(v: VitalSigns, settings: HealthSettings) -> bool:
    if not v.polls:
        return False
    wait = v.active_for - v.polls_from
    return (
        count_hasty_polls(v, settings) >= settings.loops.polls
        or wait >= settings.health_check.polling_seconds
    )


def count_hasty_polls(v: VitalSigns, settings: HealthSettings) -> int:
    """Return the number of repeated reads with the same answer that are too frequent for polling."""
    is_hasty = v.active_for - v.polls_from < v.polls * settings.loops.poll_seconds
    return max(v.polls, v.rereads) if is_hasty else v.rereads


def detect_no_tool_calls(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker that has tools but has not called one for many turns or a long time."""
    turns, limit = v.idle_turns, settings.loops.idle_turns
    if turns < limit:
        return detect_no_tool_calls_for_long(v, settings, now)
    # The worker may be talking to a user whom the telemetry does not show: if it has no tools, gave text
    # answers before its last call, or pauses long enough for a person to type.
    certain_turns = v.certain_idle_turns
    if v.last_tool_call is None:
        is_certain = v.has_user and v.is_continued
    else:
        is_certain = certain_turns >= (2 * limit if v.talks and not v.has_user else limit)
    evidence = f"the last {turns} answers of its model called no tool"
    severity = rate_count(certain_turns, limit, settings) if is_certain else Severity.LOW
    return Finding.of(FindingKind.NO_TOOL_CALLS, severity, evidence, v.idle_turns_since)


def detect_mcp_server_missing(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """
    Find MCP servers that could not be reached, or that disconnected while the worker continued.

    A client disconnects when it exits, and reconnects to a server that it loses. Only work done long after
    the disconnection shows that the server is still missing.
    """
    missing = list_missing_mcp_servers(v, settings) if v.mcp_servers else []
    if not missing:
        return None
    servers = "; ".join(_describe_mcp_server(server) for server in missing[:3])
    evidence = servers + (f"; and {len(missing) - 3} more" if len(missing) > 3 else "")
    return Finding.of(FindingKind.MCP_SERVER_MISSING, Severity.LOW, evidence, missing[0].losses[0].at)


def list_missing_mcp_servers(v: VitalSigns, settings: HealthSettings) -> list[McpServerState]:
    """Return the missing MCP servers, starting with the earliest loss."""
    latest = v.last_activity - _MCP_SERVER_SECONDS
    missing = [
        server
        for server in v.mcp_servers
        if server.losses and (server.has_failed or server.losses[0].at <= latest)
    ]
    return sorted(missing, key=lambda server: (server.losses, server.name))


def _describe_mcp_server(server: McpServerState) -> str:
    # A server's name is untrusted text.
    title = "MCP server " + json.dumps(server.name, ensure_ascii=False) if server.name else "an MCP server"
    last = server.losses[-1]
    where = f" ({last.where})" if last.where else ""
    problem = "could not be reached" if server.has_failed else "is disconnected"
    return f"{title}{where} {problem}" + (f": {last.error_type}" if last.error_type else "")


def detect_error_rate(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker whose share of failed calls and steps is too high."""
    if not v.error_rate_high:
        return None
    evidence = f"{v.error_share:.0%} of the last {v.outcomes} calls and steps failed"
    return Finding.of(FindingKind.ERROR_RATE, Severity.LOW, evidence, v.error_rate_since)


def detect_token_spike(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find an LLM call whose input is many times larger than usual."""
    if v.token_spike <= 0.0:
        return None
    evidence = f"the last LLM call was sent {v.token_spike:.1f} times the usual number of tokens"
    return Finding.of(FindingKind.TOKEN_SPIKE, Severity.LOW, evidence, v.last_activity)


def detect_grinding(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker that makes many different tool calls without changing anything."""
    if v.calls_since_gain < _GRINDING_CALLS:
        return None
    evidence = f"{v.calls_since_gain} tool calls since it last changed anything"
    return Finding.of(FindingKind.GRINDING, Severity.MEDIUM, evidence, v.last_gain_at)


def detect_token_burn(v: VitalSigns, settings: HealthSettings, now: float) -> Finding | None:
    """Find a worker that uses far more tokens than its agent usually uses between two changes."""
    if v.tokens_since_gain < _TOKEN_BURN_MINIMUM or v.clocks is None:
        return None
    usual = v.clocks.usual(TOKENS)
    if usual is None or v.tokens_since_gain < _TOKEN_BURN_FACTOR * usual.p99 * TOKENS_COUNTED_AS:
        return None
    evidence = (
        f"{v.tokens_since_gain:,} tokens since it last changed anything; "
        f"usually that takes {usual.usual * TOKENS_COUNTED_AS:,.0f}"
    )
    return Finding.of(FindingKind.TOKEN_BURN, Severity.MEDIUM, evidence, v.last_gain_at)


DETECTORS: Final[dict[FindingKind, Detector]] = {
    FindingKind.RECOVERY_FAILED: detect_recovery_failed,
    FindingKind.RUNS_FAILED: detect_runs_failed,
    FindingKind.CONTEXT_EXHAUSTED: detect_context_exhausted,
    FindingKind.PROVIDER_FAILURE: detect_provider_failure,
    FindingKind.CIRCUIT_BREAKER_OPEN: detect_circuit_breaker_open,
    FindingKind.RESOURCE_LIMIT: lambda v, settings, now: detect_resource_limit(v.resources),
    FindingKind.SPENDING: detect_spending,
    FindingKind.DOOM_LOOP: detect_doom_loop,
    FindingKind.ERROR_STREAK: detect_error_streak,
    FindingKind.RETRY_STORM: detect_retry_storm,
    FindingKind.STALL: detect_stall,
    FindingKind.ZERO_PROGRESS: detect_zero_progress,
    FindingKind.NO_TOOL_CALLS: detect_no_tool_calls,
    FindingKind.CHECKPOINT_STALE: detect_checkpoint_stale,
    FindingKind.NO_TOKENS: detect_no_tokens,
    FindingKind.HEARTBEAT_MISSING: detect_heartbeat_missing,
    FindingKind.TOOL_TIMEOUT: detect_tool_timeout,
    FindingKind.MCP_SERVER_MISSING: detect_mcp_server_missing,
    FindingKind.ERROR_RATE: detect_error_rate,
    FindingKind.OUTPUT_UNCHANGED: detect_output_unchanged,
    FindingKind.TOKEN_SPIKE: detect_token_spike,
    FindingKind.GRINDING: detect_grinding,
    FindingKind.TOKEN_BURN: detect_token_burn,
}
"""The detector of each kind of finding, in the order of evaluation."""

_ENDED_RUN_DETECTORS: Final[tuple[tuple[FindingKind, Detector], ...]] = (
    (FindingKind.RECOVERY_FAILED, detect_recovery_failed),
    (FindingKind.RUNS_FAILED, detect_runs_failed),
    *(
        (kind, _make_ended_run_detector(kind))
        for kind in (FindingKind.CONTEXT_EXHAUSTED, FindingKind.PROVIDER_FAILURE)
    ),
)
