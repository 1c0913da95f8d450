"""The processes of a cluster."""

from __future__ import annotations

from typing import Annotated, Protocol

from fastapi import APIRouter, Depends, Request

from queenright import api
from queenright.health.cluster.switch_state import SwitchState

router = APIRouter(tags=["service"])


class ClusterState(Protocol):
    """The state of a cluster, as one of its processes sees it."""

    def ready(self) -> list[str]:
        """Return the reasons why the process is not ready, as sentences."""

    async def render_metrics(self, content_type: str) -> bytes:
        """Return the exposition of the process's metrics."""

    async def status(self) -> api.ClusterStatus:
        """Return the cluster as the process sees it."""

    async def emergency_stop(self) -> SwitchState:
        """Return the emergency stop of a fleet with several partitions."""

    async def set_emergency_stop(self, on: bool, *, by: str, reason: str) -> SwitchState:
        """
        Stop the actions of a fleet with several partitions, or release the stop.

        Raises:
            StoreError: Writing failed; see ``ClusterFleet.set_emergency_stop``.
        """


async def get_cluster_state(request: Request) -> ClusterState | None:
    """Return the cluster; None if the service is a single process."""
    state: ClusterState | None = request.state.cluster
    return state


ClusterDep = Annotated[ClusterState | None, Depends(get_cluster_state)]


@router.get("/api/cluster")
async def get_cluster(cluster: ClusterDep) -> api.ClusterStatus:
    """Return the processes of the cluster, as this process sees them, and the telemetry backlog."""
    if cluster is None:
        return api.ClusterStatus(answered_by="", members=[], partitions=[], backlog=None, faults=[])
    return await cluster.status()
