"""Which people were told of the tickets that are open, in memory, for pages that are rendered often."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from queenright.alerting.notification_ledger import DeliveredNotification, told_of
from queenright.health.store import Store
from queenright.server.views.latest import Latest


class RecentNotifications(Latest[DeliveredNotification]):
    """
    What Alertmanager says it told people of open tickets.

    Args:
        store: Where it is kept.
        tickets: Returns the ids of the tickets that are open.
    """

    def __init__(self, store: Store, tickets: Callable[[], Collection[str]]) -> None:
        super().__init__(self._read, what="messages to people")
        self._store = store
        self._tickets = tickets

    def of(self, ticket_id: str) -> list[DeliveredNotification]:
        """Return who was told of an open ticket, the latest first."""
        return [one for one in self.latest if one.ticket_id == ticket_id]

    async def _read(self) -> list[DeliveredNotification]:
        ids = self._tickets()
        if not ids:
            return []
        found = await self._store.read(lambda conn: told_of(conn, ids))
        return [one for some in found.values() for one in some]


def told_rows(told: Iterable[DeliveredNotification]) -> list[dict[str, Any]]:
    """
    Return who was told, as JSON values: one row a receiver, and one for the end; the latest first.

    Several alerts of one ticket, as when its severity rose, are one row: told first and told last.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for one in told:
        row = rows.setdefault(
            (one.receiver, one.status),
            {"receiver": one.receiver, "status": one.status, "first_at": one.first_at, "at": one.last_at},
        )
        row["first_at"], row["at"] = min(row["first_at"], one.first_at), max(row["at"], one.last_at)
    return sorted(rows.values(), key=lambda row: (-row["at"], row["receiver"], row["status"]))
