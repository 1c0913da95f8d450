"""A trace as the events that the detectors know: what was done is judged the same, whoever tells of it."""

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
    Return what an agent's spans say as events, in the order in which it ended; other agents' are left out.

    Steps, model calls and tool calls are told; what has not ended is not in a trace.
    """
    ended = [span for span in spans if span.end and _kind(span) is not None]
    turns = _Turns()
    return [
        _event(span, agent, turns)
        for span in sorted(ended, key=lambda span: span.end or 0.0)
        if clean_name(str(span.attributes.get(names.GEN_AI_AGENT_NAME, agent))) == agent
    ]


class _Turns:
    """Which tool calls ran side by side: those after one answer of the model; without one, that overlap."""

    def __init__(self) -> None:
        self._llm = self._first = ""
        self._until = 0.0

    def answered(self, span: TraceSpan) -> None:
        self._llm = span.span_id

    def step_ended(self) -> None:
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
    kind, known, data = _kind(span), span.attributes, dict[str, Any]()
    assert kind is not None, "only what is of a kind was left"
    if span.error:
        data = {"error": span.error, "error_type": str(known.get(names.ERROR_TYPE) or "error")}
    if kind is EventType.STEP_COMPLETED:
        turns.step_ended()
        data |= {"verdict": known.get(names.STEP_VERDICT), "text": known.get(names.STEP_FEEDBACK)}
    elif kind is EventType.LLM_CALL_COMPLETED:
        turns.answered(span)
        data |= {
            "input_tokens": known.get(names.GEN_AI_USAGE_INPUT_TOKENS),
            "output_tokens": known.get(names.GEN_AI_USAGE_OUTPUT_TOKENS),
        }
    else:
        result = known.get(names.TOOL_RESULT_HASH)
        if result is None and span.error:
            result = fingerprint(f"{data['error_type']}: {span.error}")
        data |= {
            "tool": clean_name(span.tool),
            "args_hash": known.get(names.TOOL_ARGUMENTS_HASH),
            "result_hash": result,
            "effect": known.get(names.TOOL_EFFECT),
            "outcome": "error" if span.error else "ok",
            "turn": turns.of(span) or None,
        }
    return AgentEvent(
        type=kind,
        time=span.end or span.start,
        agent_id=agent,
        session_id=str(known.get(names.GEN_AI_CONVERSATION_ID) or ""),
        node_id=clean_name(str(known.get(names.NODE_ID) or "")),
        graph_id=clean_name(str(known.get(names.GRAPH_ID) or "")),
        span_id=span.span_id,
        data=data,
    )
