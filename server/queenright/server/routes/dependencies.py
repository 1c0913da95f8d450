"""Dependencies that FastAPI passes to routes: the service and its parts."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from queenright.health.interventions.approvals import Approvals
from queenright.health.interventions.instructions import InstructionMailbox
from queenright.health.interventions.permissions import Permissions
from queenright.health.monitoring_service import HealthMonitoringService
from queenright.health.store.store import Store
from queenright.server.service import Service

# All are coroutines, because FastAPI runs other dependencies in a thread.


async def get_service(request: Request) -> Service:
    """Return the service that handles the request."""
    service: Service = request.state.service
    return service


ServiceDep = Annotated[Service, Depends(get_service)]


async def get_health(service: ServiceDep) -> HealthMonitoringService:
    """Return the health layer."""
    return service.health


async def get_store(service: ServiceDep) -> Store:
    """Return the store."""
    return service.store


async def get_approvals(service: ServiceDep) -> Approvals:
    """Return the termination requests."""
    return service.approvals


async def get_permissions(service: ServiceDep) -> Permissions:
    """Return the permission requests of coding agents."""
    return service.permissions


async def get_instructions(service: ServiceDep) -> InstructionMailbox:
    """Return the instructions that workers fetch."""
    return service.instructions


HealthDep = Annotated[HealthMonitoringService, Depends(get_health)]
StoreDep = Annotated[Store, Depends(get_store)]
ApprovalsDep = Annotated[Approvals, Depends(get_approvals)]
PermissionsDep = Annotated[Permissions, Depends(get_permissions)]
InstructionsDep = Annotated[InstructionMailbox, Depends(get_instructions)]
