"""The service itself: its status, version, settings, telemetry and event log."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Annotated, Final

from fastapi import APIRouter, Query, Response

from queenright import api
from queenright.health.audit_page import read_page
from queenright.health.tables import SCHEMA_REVISION
from queenright.runtime.events import EventType
from queenright.server.middleware.etags import set_etag
from queenright.server.ops.reload import RELOADABLE, reload
from queenright.server.routes.dependencies import ServiceDep, StoreDep
from queenright.server.routes.openapi import operation
from queenright.server.routes.pagination import Cursor, Limit, page, place_of
from queenright.server.routes.params import OfAgent
from queenright.server.views.telemetry import telemetry_view
from queenright.server.views.view import status

router = APIRouter(tags=["service"])

_VERSION: Final = version("queenright")

Types = Annotated[list[EventType] | None, Query(alias="type", description="Only these types; repeatable.")]
Moment = Annotated[
    float | None, Query(ge=-1e11, le=1e11, allow_inf_nan=False, description="Seconds since the epoch.")
]


@router.get("/api/status", **operation("get_status"))
async def get_status(response: Response, service: ServiceDep) -> api.Status:
    """Everything the status page shows; of many workers the worst."""
    return set_etag(response, status(service))


@router.get("/api/version", **operation("get_version"))
async def get_version(service: ServiceDep) -> api.Version:
    """Which version runs here, on which schema of the database, and since when."""
    return api.Version(
        version=_VERSION,
        schema_revision=SCHEMA_REVISION,
        python=platform.python_version(),
        started_at=service.started_at,
    )


@router.get("/api/settings", **operation("get_settings"))
async def get_settings(service: ServiceDep) -> api.SettingsInForce:
    """All settings as they are in force, secrets masked: what `queenright config show` prints."""
    return api.SettingsInForce(settings=service.settings.model_dump(mode="json"), reloadable=list(RELOADABLE))


@router.get("/api/telemetry", **operation("get_telemetry"))
async def get_telemetry(service: ServiceDep) -> api.Telemetry:
    """
    Who sends telemetry, what of it was not used and why, and what each sender has to set.

    Since the service started; the last 100 senders.
    """
    return telemetry_view(service.intake, service.monitor, service.clock())


@router.post("/-/reload", **operation("reload_settings", errors=(409, 422)))
async def reload_settings(service: ServiceDep) -> api.Reloaded:
    """
    Read the settings file and the environment again, and apply what can be exchanged while running.

    Thresholds, deadlines of tickets, retention and the links in messages are; the rest is named in
    `needs_restart`. A file with a fault changes nothing. SIGHUP does the same to `queenright serve`.
    """
    return api.Reloaded.model_validate((await reload(service)).as_json())


@router.get("/api/audit", **operation("list_audit"))
async def list_audit(
    store: StoreDep,
    types: Types = None,
    agent_id: OfAgent = None,
    since: Moment = None,
    until: Moment = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> api.AuditPage:
    """
    The event log, newest first, each event with its number and its hash; what is archived comes last.

    `since` and `until` are in seconds since the epoch, by when an event was authored.
    """
    (before,) = place_of(cursor, "events", int) or (None,)
    return await page(
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
        row=lambda one: api.AuditedEvent.model_validate(
            one.event | {"seq": one.seq, "hash": one.hash.hex(), "archived": one.archived}
        ),
        place=lambda one: (one.seq,),
    )
