"""The service itself over HTTP: its version, its settings and reading them again, its event log."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request, Response

from queenright.api.operations import AuditPage, Reloaded, SettingsInForce, Version
from queenright.api.telemetry import Telemetry
from queenright.health.audit_page import LoggedEvent, read_page
from queenright.health.tables import SCHEMA_REVISION
from queenright.runtime.events import EventType
from queenright.server.ops.reload import RELOADABLE, NoSettingsFileError, reload
from queenright.server.routes.openapi import says
from queenright.server.routes.pagination import Cursor, Limit, page, place_of
from queenright.server.routes.params import OfAgent, answering
from queenright.server.service import Service
from queenright.server.settings import InvalidSettingsError
from queenright.server.views.telemetry import telemetry_values

Types = Annotated[list[EventType] | None, Query(alias="type", description="Only these types; repeatable.")]
Moment = Annotated[
    float | None, Query(ge=-1e11, le=1e11, allow_inf_nan=False, description="Seconds since the epoch.")
]


def add_service_api(app: FastAPI, service: Service) -> None:
    """Give the app the routes of the service itself."""
    app.add_exception_handler(InvalidSettingsError, answering(422))
    app.add_exception_handler(NoSettingsFileError, answering(409))
    app.include_router(_routes(service), tags=["service"])


def _routes(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/api/version", **says("get_version", Version))
    async def get_version() -> dict[str, Any]:
        """Which version runs here, on which schema of the database, and since when."""
        return {
            "version": version("queenright"),
            "schema_revision": SCHEMA_REVISION,
            "python": platform.python_version(),
            "started_at": service.started_at,
        }

    @router.get("/api/settings", **says("get_settings", SettingsInForce))
    async def get_settings() -> dict[str, Any]:
        """All settings as they are in force, secrets masked: what `queenright config show` prints."""
        return {"settings": service.settings.model_dump(mode="json"), "reloadable": list(RELOADABLE)}

    @router.get("/api/telemetry", **says("get_telemetry", Telemetry))
    async def get_telemetry() -> dict[str, Any]:
        """
        Who sends telemetry, what of it was not used and why, and what each sender has to set.

        Since the service started; the last 100 senders.
        """
        return telemetry_values(service.intake, service.monitor, service.clock())

    @router.post("/-/reload", **says("reload_settings", Reloaded, refused=(409, 422)))
    async def reload_settings(request: Request) -> dict[str, Any]:
        """
        Read the settings file and the environment again, and apply what can be exchanged while running.

        Thresholds, deadlines of tickets, retention and the links in messages are; the rest is named in
        `needs_restart`. A file with a fault changes nothing. SIGHUP does the same to `queenright serve`.
        """
        return (await reload(service)).as_json()

    @router.get("/api/audit", **says("list_audit", AuditPage))
    async def list_audit(
        types: Types = None,
        agent_id: OfAgent = None,
        since: Moment = None,
        until: Moment = None,
        limit: Limit = 100,
        cursor: Cursor = None,
    ) -> Response:
        """
        The event log, newest first, each event with its number and its hash; what is archived comes last.

        `since` and `until` are in seconds since the epoch, by when an event was authored.
        """
        (before,) = place_of(cursor, "events", int) or (None,)
        found = await service.store.read(
            lambda conn: read_page(
                conn,
                before=before,
                types=types,
                agent_id=agent_id,
                since=since,
                until=until,
                limit=limit + 1,
            )
        )
        return await page("events", found, limit, row=_row, place=lambda one: (one.seq,))

    return router


def _row(one: LoggedEvent) -> dict[str, Any]:
    return {"seq": one.seq, "hash": one.hash.hex(), "archived": one.archived} | one.event
