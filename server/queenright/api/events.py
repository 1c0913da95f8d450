"""Events of the stream and the audit log."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from queenright.api.wire import Wire, shown


class Event(Wire):
    """An event. Unknown values are empty."""

    model_config = shown(
        {
            "id": "018f6f7e-0000-7000-8000-0000000000aa",
            "type": "health_state_changed",
            "time": "2026-01-24T09:58:00.000+00:00",
            "agent_id": "researcher",
            "session_id": "session-1",
            "incarnation_id": "018f6f7e-0000-7000-8000-000000000001",
            "graph_id": "",
            "stream_id": "",
            "node_id": "search",
            "execution_id": "",
            "trace_id": "",
            "span_id": "",
            "data": {"from": "healthy", "to": "stuck", "reason": "…", "findings": []},
        }
    )

    id: str
    type: str = Field(description="In lower case, such as `worker_escalation_ticket`.")
    time: str = Field(description="ISO 8601, UTC.")
    agent_id: str
    session_id: str
    incarnation_id: str
    graph_id: str
    stream_id: str
    node_id: str
    execution_id: str
    trace_id: str
    span_id: str
    data: dict[str, Any] = Field(description="Its keys by type are in `docs/events.md`.")
