"""The service itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from queenright.api.acting import EmergencyStop
from queenright.api.alerts import Notification
from queenright.client.answers import body
from queenright.client.asynchronous.group import AsyncGroup


class AsyncService(AsyncGroup):
    """How the service is, and what holds for all workers."""

    async def status(self) -> dict[str, Any]:
        """Return everything that the status page shows."""
        return await self._ask.get("/api/status")

    async def emergency_stop(self) -> EmergencyStop:
        """Return whether acting is frozen, since when, by whom and why."""
        return await self._ask.one(EmergencyStop, "/api/emergency-stop")

    async def set_emergency_stop(self, on: bool, reason: str, *, by: str | None = None) -> EmergencyStop:
        """Freeze acting, or let it go on."""
        sent = body(on=on, reason=reason, by=by)
        return await self._ask.acted(EmergencyStop, "/api/emergency-stop", sent, method="PUT")

    def notifications(self, *, limit: int | None = None) -> AsyncIterator[Notification]:
        """Yield what was handed to Alertmanager, newest first."""
        return self._ask.every(Notification, "/api/notifications", "notifications", limit)
