"""Notifications that the outbox sends to Alertmanager."""

from __future__ import annotations

from fastapi import APIRouter

from queenright import api
from queenright.alerting import notification_records
from queenright.server.routes.dependencies import ServiceDep
from queenright.server.routes.pagination import Cursor, Limit, build_page, decode_cursor
from queenright.server.views.api_models import make_notification_row

router = APIRouter(prefix="/api", tags=["tickets"])


@router.get("/notifications")
async def list_notifications(
    service: ServiceDep, limit: Limit = 50, cursor: Cursor = None
) -> api.NotificationsPage:
    """List notifications, newest first, with their deliveries to each Alertmanager, and the outbox."""
    (before,) = decode_cursor(cursor, "notifications", int) or (None,)
    now = service.clock()
    outbox = api.Outbox.of(service.outbox.status())
    return await build_page(
        api.NotificationsPage,
        "notifications",
        await service.store.read(
            lambda conn: notification_records.list_notifications(conn, limit + 1, now=now, before=before)
        ),
        limit,
        row=lambda notification: make_notification_row(notification, outbox),
        position=lambda notification: (notification.id,),
        rank=lambda notification: (notification.written_at, notification.id),
        descending=True,
        outbox=outbox,
    )
