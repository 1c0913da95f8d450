"""Incoming telemetry: its sources, what was used, and what to configure."""

from __future__ import annotations

from pydantic import Field

from queenright.api.wire import NOW, Age, Wire, example_of, shown


class MissingPart(Wire):
    """Something that a source does not send, and the remedy."""

    model_config = shown(
        {
            "missing": "tool calls have no arguments, so repeated calls are not detected",
            "remedy": "set OPENINFERENCE_HIDE_INPUTS=false and OPENINFERENCE_HIDE_OUTPUTS=false",
        }
    )

    missing: str
    remedy: str


class TelemetrySource(Wire):
    """What one service has sent in one dialect since this service started."""

    model_config = shown(
        {
            "service": "night-graph",
            "dialect": "openinference",
            "libraries": ["openinference.instrumentation.langchain"],
            "first_seen": NOW - 600,
            "last_seen": NOW - 5,
            "when": "5 s ago",
            "records": 120,
            "used": 96,
            "rejected": 0,
            "agents": ["night-graph"],
            "session": "thread-7",
            "steps": 12,
            "tool_calls": 30,
            "tokens": 48_000,
            "shows": ["name", "model_calls", "tokens", "tool_calls"],
            "missing": [example_of(MissingPart)],
        }
    )

    service: str = Field(description="`service.name`; of a coding agent, its owner.")
    dialect: str = Field(
        description="A coding agent, a family of instrumentation libraries, or `other`, whose spans are read "
        "by their attributes."
    )
    libraries: list[str] = Field(description="Some of its instrumentation libraries.")
    first_seen: float = Field(description="Seconds since the epoch.")
    last_seen: float = Field(description="Seconds since the epoch.")
    when: Age
    records: int = Field(description="Spans, log records, metrics and hook calls.")
    used: int = Field(description="Records that were used.")
    rejected: int = Field(description="Records that are invalid.")
    agents: list[str] = Field(description="Some of its agents, newest first.")
    session: str = Field(description="The session of its last record; empty: none.")
    steps: int = Field(description="Steps of that session.")
    tool_calls: int = Field(description="Of that session.")
    tokens: int = Field(description="Of that session.")
    shows: list[str] = Field(
        description="What it reports about agents: `name`, `session`, `model_calls`, `tokens`, `tool_calls`, "
        "`content` (arguments of tool calls), `open_work` (spans that have not ended)."
    )
    missing: list[MissingPart] = Field(description="Most serious first; empty: nothing is missing.")


class UnusedRecords(Wire):
    """Records of one dialect that were not used, for one reason."""

    model_config = shown(
        {
            "dialect": "openinference",
            "reason": "no_agent_work",
            "count": 24,
            "rejected": False,
            "words": "not about work of an agent",
        }
    )

    dialect: str
    reason: str
    count: int
    rejected: bool = Field(description="The sender received an error and has to change something.")
    words: str


class RefusedRequests(Wire):
    """Refused requests to one path."""

    model_config = shown(
        {
            "path": "/v1/traces",
            "status": 401,
            "count": 3,
            "reason": "a token is required",
            "last_seen": NOW - 30,
            "when": "30 s ago",
        }
    )

    path: str
    status: int
    count: int
    reason: str = Field(description="Reason of the last one.")
    last_seen: float = Field(description="Seconds since the epoch.")
    when: Age


class Telemetry(Wire):
    """What the telemetry port received since the service started."""

    model_config = shown(
        {
            "sources": [example_of(TelemetrySource)],
            "unused": [example_of(UnusedRecords)],
            "refused": [example_of(RefusedRequests)],
        }
    )

    sources: list[TelemetrySource] = Field(description="The last 100, most recent first.")
    unused: list[UnusedRecords]
    refused: list[RefusedRequests]
