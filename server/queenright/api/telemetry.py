"""Incoming telemetry: its sources, what was used, and what to configure."""

from __future__ import annotations

from pydantic import Field

from queenright.api.base_model import ApiModel


class MissingPart(ApiModel):
    """Something that a source does not send, and the remedy."""

    missing: str
    remedy: str


class TelemetrySource(ApiModel):
    """What one service has sent in one dialect since this service started."""

    service: str = Field(description="`service.name`; for a coding agent, its owner.")
    dialect: str = Field(
        description="A coding agent, a family of instrumentation libraries, or `other`, whose spans are read "
        "by their attributes."
    )
    libraries: list[str] = Field(description="Some of its instrumentation libraries.")
    first_seen: float = Field(description="Seconds since the epoch.")
    last_seen: float = Field(description="Seconds since the epoch.")
    records: int = Field(description="Spans, log records, metrics and hook calls.")
    used: int = Field(description="Records that were used.")
    rejected: int = Field(description="Records that are invalid.")
    agents: list[str] = Field(description="Some of its agents, newest first.")
    session: str = Field(description="The session of its last record; empty: none.")
    steps: int = Field(description="Steps of that session.")
    tool_calls: int = Field(description="Tool calls of that session.")
    tokens: int = Field(description="Tokens of that session.")
    shows: list[str] = Field(
        description="What it reports about agents: `name`, `session`, `model_calls`, `tokens`, `tool_calls`, "
        "`content` (arguments of tool calls), `open_work` (spans that have not ended)."
    )
    missing: list[MissingPart] = Field(description="Most serious first; empty: nothing is missing.")


class UnusedRecords(ApiModel):
    """Records of one dialect that were not used, for one reason."""

    dialect: str
    reason: str
    count: int
    rejected: bool = Field(description="Whether the sender received an error and must change something.")
    words: str


class RefusedRequests(ApiModel):
    """Refused requests to one path."""

    path: str
    status: int
    count: int
    reason: str = Field(description="Reason of the last one.")
    last_seen: float = Field(description="Seconds since the epoch.")


class Telemetry(ApiModel):
    """Data that the telemetry port received since the service started."""

    sources: list[TelemetrySource] = Field(description="The last 100, most recent first.")
    unused: list[UnusedRecords]
    refused: list[RefusedRequests]
