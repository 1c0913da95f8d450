"""
Convert a worker's metrics and traces into vital signs for the detectors.

Thresholds, findings and tickets are the same as in the service. Values that metrics do not contain are
unknown: no detector uses them, and they are null in the summary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from queenright.health.detection.detectors import detect
from queenright.health.detection.health_state import determine_state
from queenright.health.detection.stall_detectors import format_span
from queenright.health.findings import Finding, FindingKind, find_worst
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.vitals.error_rate import ERROR_WINDOW, record_outcome
from queenright.health.vitals.incarnation import end_session
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_facts import OpenTool
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.health.vitals.waiting import begin_wait
from queenright.instrumentation import names
from queenright.instrumentation.fingerprint import fingerprint
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.names import Phase
from queenright.judge.stack.traces import TraceSpan
from queenright.judge.stack.workers import Sighting
from queenright.runtime.events import AgentEvent, EventType

_TOOLS_SHOWN: Final = 5
_STALE_TRACE_SECONDS: Final = 300.0
"""A trace that ends this many seconds before the worker's last activity is outdated."""

_NEVER_KNOWN: Final = frozenset(
    {
        "graph_id",
        "incarnation_id",
        "tool",
        "waiting_since",
        "consecutive_failures",
        "open_breakers",
        "recovery_failed",
        "recovered_at",
    }
)
_KNOWN_FROM_TRACES: Final = frozenset({"node_id", "recent_verdicts", "trace_id", "span_id"})


def build_health(
    sighting: Sighting,
    settings: HealthSettings,
    now: float,
    *,
    spans: Sequence[TraceSpan] = (),
    trace_id: str = "",
) -> WorkerHealth:
    """Return a worker's health from its metrics, and from its newest trace if there is one."""
    if sighting.is_down:
        # Judge the last known state, because a batch worker that has ended is also silent.
        now = min(now, max(sighting.last_heartbeat or 0.0, sighting.last_activity or 0.0))
    v = _make_vitals(sighting, settings, now)
    events = build_events(spans, sighting.agent)
    if events and events[-1].time < (sighting.last_activity or now) - _STALE_TRACE_SECONDS:
        events = []  # the trace belongs to an earlier session
    for event in events:
        event.trace_id = trace_id
        v.apply(event, min(event.time, now))
    trace_evidence = v.evidence
    is_traced = bool(events) and v.steps_since_last_accept == sighting.bad_steps
    _apply_metrics(v, sighting, settings, now)
    v.evidence = _describe_evidence(sighting, trace_evidence, settings.stall.unknown_seconds)
    health = _make_health(v, settings, now, has_repeats=is_traced or v.bad_repeats > 0)
    health.unknown_fields = _NEVER_KNOWN if v.last_trace_id else _NEVER_KNOWN | _KNOWN_FROM_TRACES
    return health


def ended_health(agent: str, target: str, settings: HealthSettings, now: float) -> WorkerHealth:
    """Return the health of a worker that has ended."""
    v = VitalSigns(agent, target, now, settings)
    end_session(v, WorkerStatus.COMPLETED, now)
    return _make_health(v, settings, now)


def _make_health(
    v: VitalSigns, settings: HealthSettings, now: float, *, has_repeats: bool = True
) -> WorkerHealth:
    findings = detect(v, settings, now)
    if not has_repeats:
        findings = [_remove_repeats(finding, v) for finding in findings]
    worst_finding = find_worst(findings)
    reason = worst_finding.evidence if worst_finding is not None else "no findings"
    return WorkerHealth(v, tuple(findings), determine_state(v, findings, settings, now), now, reason)


def _remove_repeats(finding: Finding, v: VitalSigns) -> Finding:
    """
    Remove the number of repeated steps from the evidence, because metrics do not contain individual steps.
    """
    if finding.kind is not FindingKind.RETRY_STORM:
        return finding
    return finding._replace(evidence=f"{v.steps_since_last_accept} bad steps since the last ACCEPT")


def _make_vitals(sighting: Sighting, settings: HealthSettings, now: float) -> VitalSigns:
    times = (
        sighting.process_started,
        sighting.last_heartbeat,
        sighting.last_activity,
        sighting.last_progress,
        sighting.last_checkpoint,
    )
    started_at = now if sighting.is_in_grace else min((at for at in times if at), default=now)
    if sighting.process_started is None and not sighting.is_in_grace:
        # The start of the process is unknown and all times may be recent, but the start grace is over.
        started_at = min(started_at, now - max(sighting.known_for, settings.judge.start_grace_seconds))
    if sighting.process_started:
        # The process has restarted, so earlier samples belong to another incarnation.
        started_at = max(started_at, min(sighting.process_started, now))
    v = VitalSigns(*sighting.key, min(started_at, now), settings)
    v.framework = sighting.framework
    return v


def _apply_metrics(v: VitalSigns, sighting: Sighting, settings: HealthSettings, now: float) -> None:
    """
    Override values of the trace with the metrics, because the trace may be incomplete and is never current.
    """
    v.only_heartbeats = sighting.last_activity is None
    v.status, v.ended_at = WorkerStatus.ACTIVE, None
    v.last_activity = min(sighting.last_activity or v.started_at, now)
    v.last_progress = v.progress_from = _cap_time(sighting.last_progress, now)
    v.last_heartbeat = _cap_time(sighting.last_heartbeat, now)
    v.last_checkpoint = v.saved_from = _cap_time(sighting.last_checkpoint, now)
    # The metrics contain neither the time of the last tool call nor that of the last token use.
    v.last_tool_call = v.tokens_at = v.tokens_from = None
    v.steps_total = max(v.steps_total, sighting.steps)
    v.tokens = max(v.tokens, sighting.tokens)
    v.error_count = max(v.error_count, sum(sighting.errors.values()))
    v.tool_calls_total = sum(calls for calls, _ in sighting.tool_calls.values())
    if sighting.waiting is not None:
        begin_wait(v, sighting.waiting, v.last_activity)
    _apply_repetition(v, sighting, settings, now)
    _apply_outcomes(v, sighting, now)
    _apply_phase(v, sighting)


def _apply_repetition(v: VitalSigns, sighting: Sighting, settings: HealthSettings, now: float) -> None:
    """
    Detect calls without progress.

    Progress is an ACCEPT, a checkpoint or a new result. So no call since the last progress has returned
    anything new.
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


def _apply_outcomes(v: VitalSigns, sighting: Sighting, now: float) -> None:
    """
    Count the recent calls in the error rate, successes first. A trace, if there is one, has their real order.
    """
    if v.outcomes:
        return
    failures = sum(bad for _, bad in sighting.recent_calls.values())
    calls = sum(calls for calls, _ in sighting.recent_calls.values())
    outcomes = min(int(calls), ERROR_WINDOW)
    bad = round(outcomes * failures / calls) if calls else 0
    for is_bad in [False] * (outcomes - bad) + [True] * bad:
        record_outcome(v, is_bad, now)


def _apply_phase(v: VitalSigns, sighting: Sighting) -> None:
    """Set the phase if the worker reported a stall."""
    v.open_tools, v.llm_open = None, 0
    v.start_records = sighting.stalled_in in (Phase.IDLE, Phase.LLM, Phase.TOOL)
    if sighting.stalled_in == Phase.LLM:
        v.llm_open = 1
    elif sighting.stalled_in == Phase.TOOL:
        v.open_tools = [OpenTool("", "", "", v.last_activity, None)]


def _cap_time(at: float | None, now: float) -> float | None:
    # The worker's clock may be ahead of the clock of Prometheus.
    return None if at is None else min(at, now)


def _describe_evidence(sighting: Sighting, trace_evidence: str, within: float) -> str:
    """Return the recent calls and errors as one line of text."""
    parts = []
    calls = sorted(sighting.recent_calls.items(), key=lambda item: -item[1][0])
    recent = [
        f"{tool} {number:.0f}" + (f" ({bad:.0f} failed)" if bad >= 1 else "")
        for tool, (number, bad) in calls[:_TOOLS_SHOWN]
        if number >= 1
    ]
    if recent:
        parts.append(f"calls in the last {format_span(within)}: {', '.join(recent)}")
    errors = sorted(sighting.errors.items(), key=lambda item: -item[1])[:_TOOLS_SHOWN]
    if errors:
        parts.append(f"errors so far: {', '.join(f'{kind} {number}' for kind, number in errors if number)}")
    if sighting.is_down:
        parts.append("its target is down")
    if trace_evidence:
        parts.append(f"last output: {trace_evidence}")
    return "; ".join(parts)


_EVENT_TYPES: Final = {
    names.Operation.CHAT.value: EventType.LLM_CALL_COMPLETED,
    names.Operation.EXECUTE_TOOL.value: EventType.TOOL_CALL_COMPLETED,
}


def build_events(spans: Iterable[TraceSpan], agent: str) -> list[AgentEvent]:
    """
    Return an agent's ended steps, model calls and tool calls as events, by end time.
    """
    ends = [span for span in spans if span.end and _find_event_type(span) is not None]
    turns = _Turns()
    return [
        _make_event(span, agent, turns)
        for span in sorted(ends, key=lambda span: span.end or 0.0)
        if clean_name(str(span.attributes.get(names.GEN_AI_AGENT_NAME, agent))) == agent
    ]


class _Turns:
    """Groups parallel tool calls: calls after the same reply of the model, and calls that overlap."""

    def __init__(self) -> None:
        self._llm = self._first = ""
        self._until = 0.0

    def note_reply(self, span: TraceSpan) -> None:
        self._llm = span.span_id

    def end_step(self) -> None:
        self._llm = self._first = ""

    def get_turn(self, span: TraceSpan) -> str:
        if self._llm:
            return self._llm
        if not self._first or span.start >= self._until:
            self._first = span.span_id
        self._until = max(self._until, span.end or span.start)
        return self._first


def _find_event_type(span: TraceSpan) -> EventType | None:
    kind = _EVENT_TYPES.get(str(span.attributes.get(names.GEN_AI_OPERATION_NAME)))
    if kind is None and span.name.startswith(f"{names.SPAN_STEP} "):
        return EventType.STEP_COMPLETED
    return kind


def _make_event(span: TraceSpan, agent: str, turns: _Turns) -> AgentEvent:
    kind, attributes, data = _find_event_type(span), span.attributes, dict[str, Any]()
    assert kind is not None, "filtered by build_events"
    if span.error:
        data = {"error": span.error, "error_type": str(attributes.get(names.ERROR_TYPE) or "error")}
    if kind is EventType.STEP_COMPLETED:
        turns.end_step()
        data |= {"verdict": attributes.get(names.STEP_VERDICT), "text": attributes.get(names.STEP_FEEDBACK)}
    elif kind is EventType.LLM_CALL_COMPLETED:
        turns.note_reply(span)
        data |= {
            "input_tokens": attributes.get(names.GEN_AI_USAGE_INPUT_TOKENS),
            "output_tokens": attributes.get(names.GEN_AI_USAGE_OUTPUT_TOKENS),
        }
    else:
        result = attributes.get(names.TOOL_RESULT_HASH)
        if result is None and span.error:
            result = fingerprint(f"{data['error_type']}: {span.error}")
        data |= {
            "tool": clean_name(span.tool),
            "args_hash": attributes.get(names.TOOL_ARGUMENTS_HASH),
            "result_hash": result,
            "effect": attributes.get(names.TOOL_EFFECT),
            "outcome": "error" if span.error else "ok",
            "turn": turns.get_turn(span) or None,
        }
    return AgentEvent(
        type=kind,
        time=span.end or span.start,
        agent_id=agent,
        session_id=str(attributes.get(names.GEN_AI_CONVERSATION_ID) or ""),
        node_id=clean_name(str(attributes.get(names.NODE_ID) or "")),
        graph_id=clean_name(str(attributes.get(names.GRAPH_ID) or "")),
        span_id=span.span_id,
        data=data,
    )
