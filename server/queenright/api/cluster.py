"""The processes of a cluster."""

from __future__ import annotations

from pydantic import Field

from queenright.api.base_model import ApiModel


class ClusterMember(ApiModel):
    """A process of the cluster."""

    member_id: str
    url: str = Field(description="URL at which the other members reach its API.")
    version: str
    is_owner: bool = Field(
        description="Whether it watches workers and decides about them: it owns at least one partition."
    )
    uptime_seconds: float
    unseen_seconds: float = Field(description="Seconds since it was last seen; above 6 it is probably gone.")


class Backlog(ApiModel):
    """Telemetry that is acknowledged but not stored yet."""

    messages: int
    bytes: int


class ClusterPartition(ApiModel):
    """A part of the fleet, which one process watches."""

    number: int
    owner: str | None = Field(description="The member that watches its workers; null if none does.")
    backlog: Backlog | None = Field(description="Null if NATS does not answer.")


class ClusterStatus(ApiModel):
    """The cluster as the answering process sees it."""

    answered_by: str = Field(description="The member that answers; empty if the service is one process.")
    members: list[ClusterMember] = Field(description="Empty if the service is one process.")
    partitions: list[ClusterPartition] = Field(description="Empty if the service is one process.")
    backlog: Backlog | None = Field(
        description="Backlog of all partitions; null if NATS does not answer, or the service is one process."
    )
    faults: list[str] = Field(description="Problems, one sentence each; empty if there are none.")
