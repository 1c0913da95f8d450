"""One event of a stream."""

from __future__ import annotations

from typing import Any

from queenright.api.wire import Wire


class Event(Wire):
    """One thing that happened, to or about one worker. ``time`` is ISO 8601, UTC."""

    id: str
    type: str
    time: str
    agent_id: str
    session_id: str
    incarnation_id: str
    graph_id: str
    stream_id: str
    node_id: str
    execution_id: str
    trace_id: str
    span_id: str
    data: dict[str, Any]
