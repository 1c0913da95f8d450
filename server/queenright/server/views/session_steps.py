"""Build the timeline of a session: its logged events as steps, and its open work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection

from queenright import api
from queenright.api.event_text import clip_text, has_feed_line
from queenright.health.detection.deadlines import list_detector_clocks
from queenright.health.detection.detector_values import list_detector_counts
from queenright.health.detection.stall_clock import StallClock, find_stall_clock
from queenright.health.monitoring.monitor import WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.store.event_log import find_place
from queenright.health.store.session_log import read_session
from queenright.health.vitals.learned_clocks import LearnedLimit
from queenright.health.vitals.tool_calls import call_signature, is_failed_tool_call
from queenright.health.vitals.vital_facts import OpenTool, count_or_zero, parse_dollars, parse_seconds
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.instrumentation.names import Phase, WaitingReason
from queenright.instrumentation.redaction import redact
from queenright.runtime.bus import UnknownEventError
from queenright.runtime.events import TRANSIENT, AgentEvent, EventType
from queenright.server.views.api_models import make_feed_line, read_ticket_id

_TEXT_LIMIT: Final = 400
_CONTEXT_EVENTS: Final = 300
"""Events before and after a page to search for the other end of a step."""
_HIDDEN_EVENTS: Final = TRANSIENT | {
    EventType.AGENT_HEARTBEAT,
    EventType.AGENT_OPERATED,
    EventType.EMERGENCY_STOP_CHANGED,
    EventType.JUDGE_CHECKED,
    EventType.OPERATOR_ASKED,
    EventType.QUEEN_ANSWERED,
    EventType.RESOURCE_REPORTED,
    EventType.TOKENS_CHANGED,
}
STEP_EVENTS: Final = frozenset(EventType) - _HIDDEN_EVENTS
"""Types of events that a timeline shows."""

_END_BY_START: Final = {
    EventType.LLM_CALL_STARTED: EventType.LLM_CALL_COMPLETED,
    EventType.NODE_LOOP_STARTED: EventType.NODE_LOOP_COMPLETED,
    EventType.STEP_STARTED: EventType.STEP_COMPLETED,
    EventType.TOOL_CALL_STARTED: EventType.TOOL_CALL_COMPLETED,
}
_END_EVENTS: Final = frozenset(_END_BY_START.values())
_RUN_ENDS: Final = frozenset(
    {EventType.EXECUTION_COMPLETED, EventType.EXECUTION_FAILED, EventType.AGENT_TERMINATED}
)
_WAIT_ENDS: Final = frozenset(
    {EventType.CLIENT_INPUT_RECEIVED, EventType.EXECUTION_RESUMED, EventType.EXECUTION_STARTED, *_RUN_ENDS}
)
"""Types of events that end a wait or a pause."""

_STEP_KINDS: Final[Mapping[EventType, str]] = {
    EventType.LLM_CALL_STARTED: "turn",
    EventType.LLM_CALL_COMPLETED: "turn",
    EventType.STEP_STARTED: "turn",
    EventType.STEP_COMPLETED: "turn",
    EventType.TOOL_CALL_STARTED: "tool",
    EventType.TOOL_CALL_COMPLETED: "tool",
    EventType.WORKER_WAITING: "wait",
    EventType.EXECUTION_PAUSED: "wait",
    EventType.CLIENT_INPUT_REQUESTED: "wait",
    EventType.CHECKPOINT_SAVED: "checkpoint",
    EventType.FINDING_OPENED: "finding",
    EventType.FINDING_CLEARED: "finding",
    EventType.HEALTH_STATE_CHANGED: "state",
    EventType.WORKER_ESCALATION_TICKET: "ticket",
    EventType.QUEEN_INTERVENTION_REQUESTED: "ticket",
    EventType.TICKET_TRIAGED: "ticket",
    EventType.TICKET_ACKNOWLEDGED: "ticket",
    EventType.TICKET_UNACKNOWLEDGED: "ticket",
    EventType.TICKET_REESCALATED: "ticket",
    EventType.TICKET_RESOLVED: "ticket",
    EventType.NUDGE_SENT: "intervention",
    EventType.ESCALATION_TRIGGERED: "intervention",
    EventType.ESCALATION_DECIDED: "intervention",
    EventType.TERMINATION_REQUESTED: "intervention",
    EventType.TERMINATION_DECIDED: "intervention",
    EventType.AGENT_TERMINATED: "intervention",
    EventType.RECOVERY_INITIATED: "intervention",
    EventType.RECOVERY_COMPLETED: "intervention",
    EventType.RECOVERY_FAILED: "intervention",
    EventType.INTERVENTION_RECORDED: "intervention",
    EventType.CIRCUIT_BREAKER_STATE_CHANGED: "other",
    EventType.NOTIFICATION_DELIVERED: "notification",
    EventType.NOTIFICATION_FAILED: "notification",
    EventType.EXECUTION_STARTED: "started",
    EventType.EXECUTION_RESUMED: "started",
    EventType.EXECUTION_COMPLETED: "ended",
    EventType.EXECUTION_FAILED: "ended",
}
"""The kind of a step, by the type of its event. Other types are `other`."""


@dataclass(slots=True)
class _Draft:
    """A step, and the sequence number of its latest event."""

    seq: int
    start: AgentEvent
    end: AgentEvent | None = None
    latest_end: float | None = None
    """The latest possible end, if no end is reported."""
    amendments: list[AgentEvent] = field(default_factory=list)


class SessionSteps:
    """
    Pairs the events of a session into steps. Events are added in log order.

    A step without an end stays open until the run ends. A model call without a span stays open only until the
    next work begins, because hooks do not report the ends of model calls.
    """

    def __init__(self, events: Iterable[tuple[int, AgentEvent]] = ()) -> None:
        self.drafts: list[_Draft] = []
        self._open: list[_Draft] = []
        self._wait: _Draft | None = None
        self._reports_starts = False
        for seq, event in events:
            self.add(seq, event)

    def add(self, seq: int, event: AgentEvent) -> str:
        """Add an event. Return the id of its step, or "" if it belongs to no step."""
        kind, data = event.type, event.data
        if kind in (EventType.LLM_CALL_COMPLETED, EventType.TOOL_CALL_COMPLETED) and data.get("amends"):
            return self._amend(event)
        if kind in _END_BY_START:
            self._reports_starts = True
        if self._wait is not None and self._is_wait_end(kind):
            self._wait.end, self._wait.seq = event, seq
            self._wait = None
        if kind in _RUN_ENDS or kind is EventType.EXECUTION_STARTED:
            self._end_work(seq, event, self._open)
        elif kind in _END_BY_START:
            self._end_work(seq, event, [draft for draft in self._open if _is_unreported_call(draft, event)])
        if kind is EventType.EXECUTION_STARTED:
            self._open.clear()
        if kind in _END_EVENTS and (open_step := self._find_draft(event)) is not None:
            self._open.remove(open_step)
            open_step.end, open_step.seq = event, seq
            return open_step.start.id
        if kind is EventType.WORKER_WAITING and not data.get("reason"):
            return ""
        if not has_feed_line(kind.value, data):
            return ""
        draft = _Draft(seq, event)
        self.drafts.append(draft)
        if kind in _END_BY_START:
            self._open.append(draft)
        elif _STEP_KINDS.get(kind) == "wait":
            self._wait = draft
        return event.id

    @staticmethod
    def _end_work(seq: int, event: AgentEvent, drafts: Iterable[_Draft]) -> None:
        for draft in drafts:
            if draft.latest_end is None:
                draft.latest_end, draft.seq = event.time, seq

    def _is_wait_end(self, kind: EventType) -> bool:
        if kind in _WAIT_ENDS or _STEP_KINDS.get(kind) == "wait":
            return True
        if self._wait is not None and self._wait.start.type is EventType.EXECUTION_PAUSED:
            return False
        return kind in _END_BY_START or (kind in _END_EVENTS and not self._reports_starts)

    def _find_draft(self, end: AgentEvent) -> _Draft | None:
        candidates = [step for step in self._open if _END_BY_START[step.start.type] is end.type]
        if end.type is EventType.TOOL_CALL_COMPLETED:
            call_id, tool = end.data.get("call_id"), end.data.get("tool")
            for draft in candidates:
                expected_id = draft.start.data.get("call_id")
                if (
                    expected_id == call_id
                    if expected_id and call_id
                    else draft.start.data.get("tool") == tool
                ):
                    return draft
            return None
        for draft in candidates:
            if end.span_id and draft.start.span_id == end.span_id:
                return draft
        # In one batch, the start records of a later step precede this end.
        earlier_drafts = (draft for draft in candidates if draft.start.time <= end.time)
        return next((draft for draft in earlier_drafts if draft.start.node_id == end.node_id), None)

    def _amend(self, event: AgentEvent) -> str:
        for draft in reversed(self.drafts):
            last_event = draft.end or draft.start
            if last_event.type is event.type and last_event.data.get("call_id") == event.data.get("call_id"):
                draft.amendments.append(event)
                return draft.start.id
        return ""


def _is_unreported_call(draft: _Draft, later: AgentEvent) -> bool:
    """Return whether a draft is a model call without a span, which ends when its node begins later work."""
    start = draft.start
    return start.type is EventType.LLM_CALL_STARTED and not start.span_id and start.node_id == later.node_id


def read_steps(
    conn: Connection,
    agent_id: str,
    session_id: str,
    *,
    after: str | None = None,
    before: str | None = None,
    limit: int,
) -> api.Steps:
    """
    Return a page of a session's timeline, without open work.

    Args:
        conn: A connection in a transaction.
        after: The event after which the page begins. Without it, the page has the newest steps.
        before: The event before which the page ends.
        limit: The maximum number of steps.

    Raises:
        UnknownEventError: There is no event ``after`` or ``before``.
    """
    low, high = _find_seq(conn, after) or 0, _find_seq(conn, before)
    newest = after is None
    # A step has at most two events.
    max_events = 2 * limit
    events = read_session(
        conn,
        agent_id,
        session_id,
        types=STEP_EVENTS,
        after=low,
        before=high,
        limit=max_events,
        newest=newest,
    )
    steps = api.Steps(
        session_id=session_id,
        incarnation_id="",
        items=[],
        first=before if high is not None else after,
        last=after if after is not None else before,
        more=False,
        open=[],
        clocks=[],
        counts=[],
    )
    if not events:
        return steps
    first_seq, last_seq = events[0][0], events[-1][0]
    read_around = partial(read_session, conn, agent_id, session_id, types=STEP_EVENTS, limit=_CONTEXT_EVENTS)
    earlier_events, later_events = read_around(before=first_seq), read_around(after=last_seq, newest=False)
    pairs = SessionSteps([*earlier_events, *events, *later_events])
    drafts = sorted(
        (draft for draft in pairs.drafts if first_seq <= draft.seq <= last_seq), key=lambda draft: draft.seq
    )
    ids = {seq: event.id for seq, event in events}
    selected_drafts = drafts[-limit:] if newest else drafts[:limit]
    is_cut = len(selected_drafts) < len(drafts)
    if is_cut:
        first_seq, last_seq = (
            (selected_drafts[0].seq, last_seq) if newest else (first_seq, selected_drafts[-1].seq)
        )
    return steps.model_copy(
        update={
            "items": [_make_step(draft) for draft in selected_drafts],
            "first": ids[first_seq],
            "last": ids[last_seq],
            "more": is_cut or bool(earlier_events if newest else later_events),
        }
    )


def read_starts(conn: Connection, agent_id: str, session_id: str) -> list[AgentEvent]:
    """Return the latest events of a session that start a step, newest first."""
    start_types = frozenset(
        kind for kind in STEP_EVENTS if kind in _END_BY_START or _STEP_KINDS.get(kind) == "wait"
    )
    starts = read_session(conn, agent_id, session_id, types=start_types, limit=_CONTEXT_EVENTS)
    return [event for _, event in reversed(starts)]


def add_open_work_to_page(
    page: api.Steps, worker: WorkerHealth, settings: HealthSettings, starts: Sequence[AgentEvent]
) -> api.Steps:
    """
    Add the worker's open work to a page, and the clocks and counts of its detectors.

    Args:
        page: The page.
        worker: The worker.
        settings: The thresholds.
        starts: The latest start events, newest first.
    """
    vitals = worker.vitals
    clocks = [
        api.DetectorClock(
            detector=clock.kind, since=clock.since, limit_seconds=clock.due - clock.since, fires_at=clock.due
        )
        for clock in list_detector_clocks(vitals, settings)
    ]
    counts = [
        api.DetectorValue(detector=value.kind, value=value.value, limit=value.limit, text=value.description)
        for value in list_detector_counts(vitals, settings)
        if value.kind in settings.active_kinds
    ]
    return page.model_copy(
        update={
            "incarnation_id": vitals.incarnation_id,
            "open": [] if vitals.has_ended else _list_open_steps(vitals, settings, starts),
            "clocks": sorted(clocks, key=lambda clock: clock.fires_at),
            "counts": sorted(counts, key=lambda count: -count.value / count.limit),
        }
    )


def _list_open_steps(
    vitals: VitalSigns, settings: HealthSettings, starts: Sequence[AgentEvent]
) -> list[api.Step]:
    clock = find_stall_clock(vitals, settings)
    open_steps = []
    for tool in vitals.open_tools or ():
        start_event = _find_start(starts, EventType.TOOL_CALL_STARTED, tool.started, tool.tool)
        open_steps.append(
            _make_open_step("tool", start_event, tool.tool, tool.started, **_describe_tool_limit(tool, clock))
        )
    if vitals.waiting is not None and vitals.waiting_since is not None:
        start_event = next((start for start in starts if _STEP_KINDS.get(start.type) == "wait"), None)
        # Only a wait with a stall clock has a limit.
        limits = {} if clock is None else _describe_limit(clock)
        text = _clip_text(vitals.question or vitals.held_by)
        open_steps.append(
            _make_open_step(
                "wait", start_event, vitals.waiting.value, vitals.waiting_since, text=text, **limits
            )
        )
    elif not open_steps and clock is not None and clock.phase is Phase.LLM:
        start_event = next((start for start in starts if start.type is EventType.LLM_CALL_STARTED), None)
        since = clock.since if start_event is None else start_event.time
        open_steps.append(_make_open_step("turn", start_event, vitals.model, since, **_describe_limit(clock)))
    elif not open_steps and clock is not None:
        open_steps.append(
            _make_open_step("other", None, _IDLE_NAMES[clock.phase], clock.since, **_describe_limit(clock))
        )
    return open_steps


def _find_start(starts: Sequence[AgentEvent], kind: EventType, at: float, tool: str) -> AgentEvent | None:
    matching_starts = [
        start for start in starts if start.type is kind and str(start.data.get("tool") or "") == tool
    ]
    return next(
        (start for start in matching_starts if start.time == at),
        matching_starts[0] if matching_starts else None,
    )


def _make_open_step(
    kind: str, start: AgentEvent | None, name: str, since: float, **other_fields: Any
) -> api.Step:
    return _build_step(
        step_id=f"open:{kind}:{name}:{since:.3f}" if start is None else start.id,
        type="" if start is None else start.type,
        kind=kind,
        name=name,
        phase="open",
        at=since,
        started_at=since,
        **other_fields,
    )


_IDLE_NAMES: Final = {Phase.IDLE: "between steps", Phase.UNKNOWN: "idle, or in a call reported at its end"}


def _describe_tool_limit(tool: OpenTool, clock: StallClock | None) -> dict[str, Any]:
    if clock is None:
        return {}
    if tool.timeout is not None and tool != clock.tool:
        return {
            "fires_at": tool.started + tool.timeout,
            "limit_seconds": tool.timeout,
            "reason": "timeout declared by the tool",
        }
    return _describe_limit(clock)


def _describe_limit(clock: StallClock) -> dict[str, Any]:
    learned_limit: LearnedLimit | None = clock.learned_limit
    if clock.tool is not None and clock.tool.timeout is not None:
        reason = "timeout declared by the tool"
    elif learned_limit is not None:
        reason = f"learned from {learned_limit.calls} durations"
    else:
        reason = f"health_monitoring.stall.{clock.phase.value}_seconds"
    return {"fires_at": clock.due, "limit_seconds": clock.due - clock.since, "reason": reason}


def _find_seq(conn: Connection, event_id: str | None) -> int | None:
    if event_id is None:
        return None
    place = find_place(conn, event_id)
    if place is None:
        raise UnknownEventError(event_id)
    return place.seq


def _make_step(draft: _Draft) -> api.Step:
    """Convert a draft to a step of the API."""
    start, end = draft.start, draft.end
    shown_event = end if end is not None and start.type in _END_BY_START else start
    kind = _STEP_KINDS.get(start.type, "other")
    values: dict[str, Any] = {
        "step_id": start.id,
        "type": shown_event.type,
        "kind": kind,
        "at": shown_event.time,
        "started_at": start.time,
        "ended_at": shown_event.time,
        "phase": "instant",
    }
    if kind in ("turn", "tool", "wait") or start.type in _END_BY_START or start.type in _END_EVENTS:
        values |= _describe_work(draft, shown_event)
    else:
        values |= _describe_event(shown_event)
    return _build_step(**values)


def _describe_work(draft: _Draft, shown_event: AgentEvent) -> dict[str, Any]:
    """Return the fields of a step that has a duration."""
    start, end = draft.start, draft.end
    data: dict[str, Any] = dict(shown_event.data)
    for amendment in draft.amendments:
        data |= amendment.data
    if end is None and start.type in _END_EVENTS:
        end = start
    values: dict[str, Any] = {"at": end.time if end is not None else start.time}
    values["ended_at"] = draft.latest_end if end is None else end.time
    duration = parse_seconds(data.get("duration"))
    if draft.end is None and end is not None and duration is not None:
        values["started_at"] = start.time - duration
    has_failed = False
    match shown_event.type:
        case EventType.TOOL_CALL_STARTED | EventType.TOOL_CALL_COMPLETED:
            has_failed = end is not None and is_failed_tool_call(data)
            values["name"] = str(data.get("tool") or "")
            values["detail"] = str(
                data.get("error_type") or (data.get("outcome") if has_failed else "") or ""
            )
            values["signature"] = call_signature(data)
        case EventType.LLM_CALL_STARTED | EventType.LLM_CALL_COMPLETED:
            has_failed = bool(data.get("error_type") or data.get("error"))
            values["name"] = str(data.get("model") or start.data.get("model") or "")
            values["detail"] = str(data.get("error_type") or ("truncated" if data.get("truncated") else ""))
            values["tokens_in"] = count_or_zero(data.get("input_tokens"))
            values["tokens_out"] = count_or_zero(data.get("output_tokens"))
            values["cost_usd"] = parse_dollars(data.get("cost_usd"))
        case EventType.STEP_STARTED | EventType.STEP_COMPLETED:
            has_failed = bool(data.get("error_type") or data.get("error"))
            values["name"] = f"step {data['index']}" if data.get("index") is not None else "step"
            values["detail"] = str(data.get("verdict") or data.get("error_type") or "")
        case EventType.NODE_LOOP_STARTED | EventType.NODE_LOOP_COMPLETED:
            has_failed = data.get("outcome") in ("failed", "incomplete")
            values["name"] = shown_event.node_id
            values["detail"] = str(data.get("outcome") or "")
        case EventType.EXECUTION_PAUSED:
            values["name"] = WaitingReason.PAUSED.value
        case EventType.CLIENT_INPUT_REQUESTED:
            values["name"] = WaitingReason.USER_INPUT.value
        case _:
            values["name"] = str(data.get("reason") or "")
    values["text"] = _clip_text(
        data.get("error") or data.get("question") or data.get("finding") or data.get("text")
    )
    values["phase"] = "open" if values["ended_at"] is None else "failed" if has_failed else "done"
    return values


def _describe_event(event: AgentEvent) -> dict[str, Any]:
    """Return the fields of an event without a duration."""
    data = event.data
    values: dict[str, Any] = {"name": event.type.value, "ref": _find_reference(event)}
    match event.type:
        case EventType.FINDING_OPENED | EventType.FINDING_CLEARED:
            values |= {
                "name": str(data.get("kind") or ""),
                "severity": str(data.get("severity") or ""),
                "detail": event.type.value.removeprefix("finding_"),
                "started_at": min(parse_seconds(data.get("since")) or event.time, event.time),
                "text": _clip_text(data.get("evidence")),
            }
        case EventType.HEALTH_STATE_CHANGED:
            values |= {
                "name": str(data.get("to") or ""),
                "detail": str(data.get("outcome") or ""),
                "text": _clip_text(data.get("reason")),
            }
        case EventType.EXECUTION_COMPLETED | EventType.EXECUTION_FAILED:
            has_failed = event.type is EventType.EXECUTION_FAILED
            values |= {
                "name": "failed" if has_failed else "completed",
                "phase": "failed" if has_failed else "instant",
                "detail": str(data.get("error_type") or ""),
                "text": _clip_text(data.get("error")),
            }
        case EventType.EXECUTION_STARTED | EventType.EXECUTION_RESUMED:
            values["name"] = str(data.get("framework") or data.get("entry_point") or "")
        case EventType.CHECKPOINT_SAVED:
            values["name"] = str(data.get("checkpoint_id") or "")
        case kind if kind in _STEP_KINDS:
            ticket = data.get("ticket")
            described_data = ticket if isinstance(ticket, Mapping) else data
            values["severity"] = str(described_data.get("severity") or "")
            values["detail"] = str(
                data.get("change") or data.get("decision") or data.get("status") or data.get("outcome") or ""
            )
            line = make_feed_line(event).text
            values["text"] = _clip_text(line.removeprefix(f"{event.agent_id}: "))
    return values


def _find_reference(event: AgentEvent) -> str:
    names = ("intervention_id", "escalation_id", "approval_id", "recovery_id", "instruction_id")
    return read_ticket_id(event) or next(
        (str(event.data[name]) for name in names if event.data.get(name)), ""
    )


def _clip_text(value: object) -> str:
    return clip_text(redact(str(value)), _TEXT_LIMIT) if value else ""


def _build_step(**values: Any) -> api.Step:
    defaults: dict[str, Any] = {
        "name": "",
        "ended_at": None,
        "text": "",
        "detail": "",
        "tokens_in": 0,
        "tokens_out": 0,
        "cost_usd": None,
        "signature": "",
        "severity": "",
        "ref": "",
        "fires_at": None,
        "limit_seconds": None,
        "reason": "",
    }
    return api.Step(**defaults | values)
