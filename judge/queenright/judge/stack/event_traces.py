"""Read traces from the event log, for use without Tempo."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, select

from queenright.health.store.event_log import event_of
from queenright.health.store.store import Store, StoreError
from queenright.health.store.tables import EVENTS
from queenright.instrumentation import names
from queenright.judge.stack.http import StackUnavailableError
from queenright.judge.stack.traces import TraceSpan
from queenright.runtime.events import AgentEvent

SEARCHED_EVENTS: Final = 50_000
"""The number of newest events that are searched, because the log has no index of traces."""
_MAX_EVENTS: Final = 500

_ATTRIBUTES: Final = {
    "tool": names.GEN_AI_TOOL_NAME,
    "args_hash": names.TOOL_ARGUMENTS_HASH,
    "result_hash": names.TOOL_RESULT_HASH,
    "effect": names.TOOL_EFFECT,
    "verdict": names.STEP_VERDICT,
    "model": names.GEN_AI_REQUEST_MODEL,
    "input_tokens": names.GEN_AI_USAGE_INPUT_TOKENS,
    "output_tokens": names.GEN_AI_USAGE_OUTPUT_TOKENS,
    "error_type": names.ERROR_TYPE,
    "outcome": "outcome",
    "reason": "reason",
}


class EventTraces:
    """The event log as a source of traces."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def trace(self, trace_id: str) -> list[TraceSpan]:
        """
        Return the newest events of a trace as spans, oldest first.

        Raises:
            StackUnavailableError: The log cannot be read.
        """
        hex_id = trace_id.lower()
        try:
            events = await self._store.read(lambda conn: _read_events(conn, hex_id))
        except StoreError:
            raise StackUnavailableError("the event log", "cannot be read now") from None
        return [_make_span(event) for event in reversed(events)]


def _read_events(conn: Connection, trace_id: str) -> list[AgentEvent]:
    newest = select(EVENTS).order_by(EVENTS.c.seq.desc()).limit(SEARCHED_EVENTS).subquery()
    query = (
        select(newest).where(newest.c.trace_id == trace_id).order_by(newest.c.seq.desc()).limit(_MAX_EVENTS)
    )
    return [event for row in conn.execute(query) if (event := event_of(row)) is not None]


def _make_span(event: AgentEvent) -> TraceSpan:
    data = event.data
    attributes = {name: data[key] for key, name in _ATTRIBUTES.items() if data.get(key) is not None}
    attributes |= {names.GEN_AI_AGENT_NAME: event.agent_id, names.GEN_AI_CONVERSATION_ID: event.session_id}
    if event.node_id:
        attributes[names.NODE_ID] = event.node_id
    return TraceSpan(
        name=event.type.value,
        start=event.time,
        end=None,
        span_id=event.span_id,
        error=str(data.get("error") or data.get("error_type") or ""),
        attributes=attributes,
    )
