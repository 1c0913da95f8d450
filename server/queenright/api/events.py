"""Events of the stream and the audit log."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from queenright.api.base_model import ApiModel


class Event(ApiModel):
    """An event. Unknown values are empty."""

    id: str
    type: str = Field(description="In lower case, such as `worker_escalation_ticket`.")
    time: float = Field(description="Seconds since the epoch.")
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
