"""Convert a trace into events for the detectors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from queenright.instrumentation import names
from queenright.instrumentation.fingerprint import fingerprint
from queenright.instrumentation.identity import clean_name
from queenright.judge.stack.traces import TraceSpan
from queenright.runtime.events import AgentEvent, EventType

_KINDS: Final = {
    names.Operation.CHAT.value: EventType.LLM_CALL_COMPLETED,
    names.Operation.EXECUTE_TOOL.value: EventType.TOOL_CALL_COMPLETED,
}


def events_of(spans: Iterable[TraceSpan], agent: str) -> list[AgentEvent]:
    """
    Return an agent's ended steps, model calls and tool calls as events, by end time.
    """
    ended = [span for span in spans if span.end and _kind(span) is not None]
    turns = _Turns()
    return [
        _event(span, agent, turns)
        for span in sorted(ended, key=lambda span: span.end or 0.0)
        if clean_name(str(span.attributes.get(names.GEN_AI_AGENT_NAME, agent))) == agent
    ]


class _Turns:
    """Groups parallel tool calls: those after one reply of the model, or those that overlap."""

    def __init__(self) -> None:
        self._llm = self._first = ""
        self._until = 0.0

    def note_reply(self, span: TraceSpan) -> None:
        self._llm = span.span_id

    def end_step(self) -> None:
        self._llm = self._first = ""

    def of(self, span: TraceSpan) -> str:
        if self._llm:
            return self._llm
        if not self._first or span.start >= self._until:
            self._first = span.span_id
        self._until = max(self._until, span.end or span.start)
        return self._first


def _kind(span: TraceSpan) -> EventType | None:
    kind = _KINDS.get(str(span.attributes.get(names.GEN_AI_OPERATION_NAME)))
    if kind is None and span.name.startswith(f"{names.SPAN_STEP} "):
        return EventType.STEP_COMPLETED
    return kind


def _event(span: TraceSpan, agent: str, turns: _Turns) -> AgentEvent:
    kind, attributes, data = _kind(span), span.attributes, dict[str, Any]()
    assert kind is not None, "filtered by events_of"
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
            "turn": turns.of(span) or None,
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
