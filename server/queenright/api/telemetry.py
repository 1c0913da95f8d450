"""Incoming telemetry: who sends it, what was made of it, and what a sender has to set."""

from __future__ import annotations

from pydantic import Field

from queenright.api.wire import NOW, Age, Wire, example_of, shown


class MissingPart(Wire):
    """What a source does not send, and what to set."""

    model_config = shown(
        {
            "missing": "tool calls have no arguments, so a repeated call is not seen as one",
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

    service: str = Field(description="`service.name`; of a coding agent, whose it is.")
    dialect: str = Field(
        description="A coding agent, a family of instrumentation libraries, or `other`, whose spans are read "
        "by their attributes all the same."
    )
    libraries: list[str] = Field(description="Some of its instrumentation scopes.")
    first_seen: float = Field(description="Seconds since the epoch.")
    last_seen: float = Field(description="Seconds since the epoch.")
    when: Age
    records: int = Field(description="Spans, log records, metrics and hook calls.")
    used: int = Field(description="Something was made of so many.")
    rejected: int = Field(description="So many cannot be used.")
    agents: list[str] = Field(description="Some of its agents, the newest first.")
    session: str = Field(description="The session that was told of last; empty: none.")
    steps: int = Field(description="Of that session, as its agent's health shows them.")
    tool_calls: int = Field(description="Of that session.")
    tokens: int = Field(description="Of that session.")
    shows: list[str] = Field(
        description="What it shows of its agents: `name`, `session`, `model_calls`, `tokens`, `tool_calls`, "
        "`content` (what tools are called with), `open_work` (when work begins)."
    )
    missing: list[MissingPart] = Field(description="The most serious first; empty: nothing is missing.")


class UnusedRecords(Wire):
    """Records of one dialect that nothing was made of, for one reason."""

    model_config = shown(
        {
            "dialect": "openinference",
            "reason": "no_agent_work",
            "count": 24,
            "rejected": False,
            "words": "nothing that an agent did",
        }
    )

    dialect: str
    reason: str
    count: int
    rejected: bool = Field(description="Their sender was told, and has to change something.")
    words: str


class RefusedRequests(Wire):
    """Requests to one path that were refused whole."""

    model_config = shown(
        {
            "path": "/v1/traces",
            "status": 401,
            "count": 3,
            "reason": "this needs a token",
            "last_seen": NOW - 30,
            "when": "30 s ago",
        }
    )

    path: str
    status: int
    count: int
    reason: str = Field(description="Of the last one.")
    last_seen: float = Field(description="Seconds since the epoch.")
    when: Age


class Telemetry(Wire):
    """What the telemetry port has received since the service started."""

    model_config = shown(
        {
            "sources": [example_of(TelemetrySource)],
            "unused": [example_of(UnusedRecords)],
            "refused": [example_of(RefusedRequests)],
        }
    )

    sources: list[TelemetrySource] = Field(description="The last 100, those that sent last first.")
    unused: list[UnusedRecords]
    refused: list[RefusedRequests]
