"""
What is seen of a worker from outside, made into the vital signs that the detectors know. Pure.

So the thresholds, the findings and the tickets are those of the service. What metrics cannot tell stays
unknown: no detector speaks of it, and in the summary it is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from queenright.health.detectors import detect
from queenright.health.findings import Finding, FindingKind, worst
from queenright.health.monitor import WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.silence import span
from queenright.health.state import health_state
from queenright.health.vital_facts import OpenTool, SessionStatus
from queenright.health.vitals import VitalSigns
from queenright.instrumentation.names import Phase
from queenright.judge.stack.replay import events_of
from queenright.judge.stack.traces import TraceSpan
from queenright.judge.stack.workers import Sighting

_TOOLS_SHOWN: Final = 5
_STALE_TRACE: Final = 300.0
"""A trace that ends so much before the worker's last activity is not of what it does now."""

_NEVER_TOLD: Final = frozenset(
    {
        "worker_graph_id",
        "incarnation_id",
        "tool",
        "waiting_since",
        "consecutive_failures",
        "open_breakers",
        "recovery_failed",
        "recovered_at",
    }
)
_TOLD_BY_TRACES: Final = frozenset({"worker_node_id", "recent_verdicts", "trace_id", "span_id"})


def health_of(
    sighting: Sighting,
    settings: HealthSettings,
    now: float,
    *,
    spans: Sequence[TraceSpan] = (),
    trace_id: str = "",
) -> WorkerHealth:
    """
    Return a worker's health by its metrics and, where there is one, its newest trace.

    Args:
        sighting: What the metrics say.
        settings: The thresholds.
        now: Prometheus' time.
        spans: The worker's newest trace.
        trace_id: And its id.
    """
    if sighting.down:
        # A batch worker that has ended is silent, too: what counts is how it was when it spoke last.
        now = min(now, max(sighting.last_heartbeat or 0.0, sighting.last_activity or 0.0))
    v = _vitals(sighting, settings, now)
    events = events_of(spans, sighting.agent)
    if events and events[-1].time < (sighting.last_activity or now) - _STALE_TRACE:
        events = []  # of an earlier session: what was wrong then is none of this one's
    for event in events:
        event.trace_id = trace_id
        v.apply(event, min(event.time, now))
    from_trace = v.evidence
    traced = bool(events) and v.steps_since_last_accept == sighting.bad_steps
    _by_metrics(v, sighting, settings, now)
    v.evidence = _evidence(sighting, from_trace, settings.stall.unknown_seconds)
    health = _judged(v, settings, now, repeats_told=traced or v.bad_repeats > 0)
    health.untold = _NEVER_TOLD if v.last_trace_id else _NEVER_TOLD | _TOLD_BY_TRACES
    return health


def over(agent: str, target: str, settings: HealthSettings, now: float) -> WorkerHealth:
    """Return the health of a worker whose metrics are no more: its ticket has nobody to be about."""
    v = VitalSigns(agent, target, now, settings.loops, settings)
    v.end(SessionStatus.COMPLETED, now)
    return _judged(v, settings, now)


def _judged(
    v: VitalSigns, settings: HealthSettings, now: float, *, repeats_told: bool = True
) -> WorkerHealth:
    findings = detect(v, settings, now)
    if not repeats_told:
        findings = [_without_repeats(finding, v) for finding in findings]
    lead = worst(findings)
    reason = lead.evidence if lead is not None else "nothing wrong is seen"
    return WorkerHealth(v, tuple(findings), health_state(v, findings, settings, now), now, reason)


def _without_repeats(finding: Finding, v: VitalSigns) -> Finding:
    """Leave out how many of the bad steps brought nothing new: of single steps metrics say nothing."""
    if finding.kind is not FindingKind.RETRY_STORM:
        return finding
    return finding._replace(evidence=f"{v.steps_since_last_accept} bad steps since the last ACCEPT")


def _vitals(sighting: Sighting, settings: HealthSettings, now: float) -> VitalSigns:
    told = (
        sighting.process_started,
        sighting.last_heartbeat,
        sighting.last_activity,
        sighting.last_progress,
        sighting.last_checkpoint,
    )
    began = now if sighting.in_grace else min((at for at in told if at), default=now)
    if sighting.process_started is None and not sighting.in_grace:
        # Its process tells no start, and all that it tells may be of just now: past its grace it is.
        began = min(began, now - max(sighting.there_for, settings.judge.start_grace_seconds))
    if sighting.process_started:
        # A process that was begun anew within the grace: what Prometheus has of before was another life.
        began = max(began, min(sighting.process_started, now))
    v = VitalSigns(*sighting.key, min(began, now), settings.loops, settings)
    v.framework = sighting.framework
    return v


def _by_metrics(v: VitalSigns, sighting: Sighting, settings: HealthSettings, now: float) -> None:
    """Have the metrics' word on what they know: a trace may be cut, and is never of now."""
    v.only_heartbeats = sighting.last_activity is None
    v.status, v.ended_at = SessionStatus.ACTIVE, None
    v.last_activity = min(sighting.last_activity or v.started_at, now)
    v.last_progress = v.progress_from = _not_after(sighting.last_progress, now)
    v.last_heartbeat = _not_after(sighting.last_heartbeat, now)
    v.last_checkpoint = v.saved_from = _not_after(sighting.last_checkpoint, now)
    # When a tool was called, and tokens were used last, no metric says.
    v.last_tool_call = v.tokens_at = v.tokens_from = None
    v.steps_total = max(v.steps_total, sighting.steps)
    v.tokens = max(v.tokens, sighting.tokens)
    v.error_count = max(v.error_count, sum(sighting.errors.values()))
    v.tool_calls_total = sum(calls for calls, _ in sighting.tool_calls.values())
    if sighting.waiting is not None:
        v.begin_wait(sighting.waiting, v.last_activity)
    _repetition(v, sighting, settings, now)
    _outcomes(v, sighting, now)
    _phase(v, sighting)


def _repetition(v: VitalSigns, sighting: Sighting, settings: HealthSettings, now: float) -> None:
    """
    Tell work that comes to nothing: many calls since the last progress, none of which told anything new.

    Progress is an ACCEPT, a checkpoint or a result not seen before, so that all calls of a time without
    any told what was known.
    """
    since = v.last_progress or v.started_at
    calls = int(sum(calls for calls, _ in sighting.recent_calls.values()))
    nothing_new = now - since >= settings.stall.unknown_seconds and calls >= settings.bands.warning
    if nothing_new and calls > v.stale_calls:
        v.stale_calls, v.stale_since = calls, since
    elif not nothing_new and now - since < settings.stall.unknown_seconds:
        v.stale_calls = 0
    if v.steps_since_last_accept != sighting.bad_steps:
        v.steps_since_last_accept = sighting.bad_steps
        v.bad_repeats = sighting.bad_steps if nothing_new else 0
        v.bad_since = since


def _outcomes(v: VitalSigns, sighting: Sighting, now: float) -> None:
    """Count the recent calls into the share that failed, the good ones first; a trace knows their order."""
    if v.outcomes:
        return
    failed = sum(bad for _, bad in sighting.recent_calls.values())
    calls = sum(calls for calls, _ in sighting.recent_calls.values())
    window = v.settings.health_check.error_window
    known = min(int(calls), window)
    bad = round(known * failed / calls) if calls else 0
    for is_bad in [False] * (known - bad) + [True] * bad:
        v.note_outcome(is_bad, now)


def _phase(v: VitalSigns, sighting: Sighting) -> None:
    """Say what the worker is in the middle of, where it saw a stall in itself and said in what."""
    v.open_tools, v.llm_open = None, 0
    v.start_records = sighting.stalled_in in (Phase.IDLE, Phase.LLM, Phase.TOOL)
    if sighting.stalled_in == Phase.LLM:
        v.llm_open = 1
    elif sighting.stalled_in == Phase.TOOL:
        v.open_tools = [OpenTool("", "", "", v.last_activity, None)]


def _not_after(at: float | None, now: float) -> float | None:
    # A worker's clock may be ahead of Prometheus'.
    return None if at is None else min(at, now)


def _evidence(sighting: Sighting, from_trace: str, within: float) -> str:
    """Say in a line what the counters say: what was called lately, what went wrong."""
    parts = []
    calls = sorted(sighting.recent_calls.items(), key=lambda item: -item[1][0])
    lately = [
        f"{tool} {number:.0f}" + (f" ({bad:.0f} failed)" if bad >= 1 else "")
        for tool, (number, bad) in calls[:_TOOLS_SHOWN]
        if number >= 1
    ]
    if lately:
        parts.append(f"calls in the last {span(within)}: {', '.join(lately)}")
    errors = sorted(sighting.errors.items(), key=lambda item: -item[1])[:_TOOLS_SHOWN]
    if errors:
        parts.append(f"errors so far: {', '.join(f'{kind} {number}' for kind, number in errors if number)}")
    if sighting.down:
        parts.append("its target is down")
    if from_trace:
        parts.append(f"last said: {from_trace}")
    return "; ".join(parts)
