"""The service itself: its status, version, settings, telemetry and event log."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request

from queenright import api
from queenright.health.audit.audit_page import read_page
from queenright.health.store.tables import SCHEMA_REVISION
from queenright.runtime.events import EventType
from queenright.server.access.caller import find_caller
from queenright.server.access.roles import AccessLevel, is_allowed
from queenright.server.reload import RELOADABLE, reload_service_settings
from queenright.server.routes.dependencies import ServiceDep, StoreDep
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Cursor, Limit, build_page, decode_cursor
from queenright.server.routes.params import AgentQuery
from queenright.server.views.api_models import build_status
from queenright.server.views.telemetry import build_telemetry_view

router = APIRouter(tags=["service"])

_VERSION: Final = version("queenright")

EventTypesQuery = Annotated[
    list[EventType] | None, Query(alias="type", description="Only events of this type; repeatable.")
]
TimestampQuery = Annotated[
    float | None, Query(ge=-1e11, le=1e11, allow_inf_nan=False, description="Seconds since the epoch.")
]


@router.get("/api/status")
async def get_status(service: ServiceDep) -> api.Status:
    """Return the worst workers, the latest events, and interventions in progress."""
    return build_status(service)


@router.get("/api/version")
async def get_version(service: ServiceDep) -> api.Version:
    """Return the version of the service and of its database schema, and when it started."""
    return api.Version(
        version=_VERSION,
        schema_revision=SCHEMA_REVISION,
        python=platform.python_version(),
        started_at=service.started_at,
    )


@router.get("/api/caller")
async def get_caller(request: Request) -> api.CurrentCaller:
    """Return the caller's name, role and permissions."""
    caller = find_caller(request)

    def may(level: AccessLevel) -> bool:
        return caller.role is not None and is_allowed(caller.role, level)

    return api.CurrentCaller(
        name=caller.name,
        role=caller.role or "",
        may_act=may(AccessLevel.OPERATOR),
        may_manage=may(AccessLevel.ADMIN),
    )


@router.get("/api/settings")
async def get_settings(service: ServiceDep) -> api.CurrentSettings:
    """Return the settings in force, with secrets masked, as `queenright config show` does."""
    return api.CurrentSettings(settings=service.settings.model_dump(mode="json"), reloadable=list(RELOADABLE))


@router.get("/api/telemetry")
async def get_telemetry(service: ServiceDep) -> api.Telemetry:
    """
    Return the senders of telemetry, the unused records with the reasons, and what each sender should set.

    Counts start when the service starts. At most the last 100 senders are listed.
    """
    return build_telemetry_view(service.intake, service.monitor)


@router.post("/-/reload", **operation(errors=(409, 422)))
async def reload_settings(service: ServiceDep) -> api.Reloaded:
    """
    Read the settings file and the environment again, and apply what can change at runtime.

    Thresholds, ticket deadlines, retention and the links in messages can change; `needs_restart` lists the
    others. An invalid file changes nothing. SIGHUP has the same effect on `queenright serve`.
    """
    result = await reload_service_settings(service)
    return api.Reloaded.of(result, unchanged=result.is_unchanged)


@router.get("/api/audit")
async def list_audit(
    store: StoreDep,
    types: EventTypesQuery = None,
    agent_id: AgentQuery = None,
    since: TimestampQuery = None,
    until: TimestampQuery = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> api.AuditPage:
    """
    List the event log, newest first, with the number and hash of each event. Archived events come last.

    `since` and `until` are in seconds since the epoch and apply to the time of the event.
    """
    (before,) = decode_cursor(cursor, "events", int) or (None,)
    return await build_page(
        api.AuditPage,
        "events",
        await store.read(
            lambda conn: read_page(
                conn,
                before=before,
                types=types,
                agent_id=agent_id,
                since=since,
                until=until,
                limit=limit + 1,
            )
        ),
        limit,
        row=lambda row: api.AuditedEvent.model_validate(
            row.event | {"seq": row.seq, "hash": row.hash.hex(), "archived": row.archived}
        ),
        position=lambda row: (row.seq,),
        rank=lambda row: (row.event["time"], row.seq),
        descending=True,
    )
