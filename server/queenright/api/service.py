"""The service's version, settings and event log, and the timeline of a ticket."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from queenright.api.base_model import NEXT, ApiModel


class Version(ApiModel):
    """The version of the service."""

    version: str
    schema_revision: str = Field(description="The newest migration of the database.")
    python: str
    started_at: float = Field(description="Seconds since the epoch.")


class CurrentCaller(ApiModel):
    """The caller of a request."""

    name: str = Field(description="The token's name; empty without a token.")
    role: str = Field(description="The token's role; empty without one.")
    may_act: bool = Field(description="Whether the caller may act on workers and tickets.")
    may_manage: bool = Field(description="Whether the caller may load agents and read the settings.")


class CurrentSettings(ApiModel):
    """All settings, nested as in `queenright.yaml`; secrets are masked."""

    settings: dict[str, Any]
    reloadable: list[str] = Field(
        description="Settings that `POST /-/reload` applies; the others need a restart."
    )


class Reloaded(ApiModel):
    """The result of reloading the settings."""

    applied: list[str] = Field(description="Changed settings that are in force now.")
    needs_restart: list[str] = Field(description="Changed settings that need a restart.")
    unchanged: bool = Field(description="Whether no setting changed.")


class AuditedEvent(ApiModel):
    """An event of the log. Times in seconds since the epoch."""

    partition: int = Field(0, description="Partition of a cluster whose log has it; 0 without partitions.")
    seq: int = Field(description="Its number in the log, from 1.")
    hash: str = Field(description="SHA-256 over this row and the hash of the row before it, in hex.")
    archived: bool = Field(description="Whether the event is in the archive.")
    id: str
    type: str
    time: float
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


class AuditPage(ApiModel):
    """Events of the log, newest first."""

    events: list[AuditedEvent]
    next: str | None = Field(description=NEXT)


class TimelineEntry(ApiModel):
    """An event of a ticket, or of its worker because of the ticket."""

    at: float = Field(description="Seconds since the epoch.")
    what: str = Field(
        description="The type of the event; `receiver_notified`: Alertmanager notified a receiver; "
        "`incident_joined`: it joined the alert of another ticket."
    )
    text: str
    by: str = Field(description="Who did it; empty if the service did.")
    status: str = Field(description="For `receiver_notified`: `firing` or `resolved`; otherwise empty.")
    event_id: str = Field(description="Event id; empty if none.")


class Timeline(ApiModel):
    """The timeline of a ticket, oldest first."""

    timeline: list[TimelineEntry]
    more: bool = Field(description="Whether older entries were omitted.")
