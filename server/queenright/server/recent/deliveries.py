"""The deliveries of the notifications of open tickets, in memory for pages that are rendered often."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from queenright import api
from queenright.alerting.notification_ledger import DeliveredNotification, deliveries_of
from queenright.health.store import Store
from queenright.server.recent.latest import Latest


class RecentNotifications(Latest[DeliveredNotification]):
    """
    The deliveries to receivers that Alertmanager reported for open tickets.

    Args:
        store: The store.
        tickets: Returns the ids of the tickets that are open.
    """

    def __init__(self, store: Store, tickets: Callable[[], Collection[str]]) -> None:
        super().__init__(self._read, what="deliveries to receivers")
        self._store = store
        self._tickets = tickets

    def of(self, ticket_id: str) -> list[DeliveredNotification]:
        """Return the deliveries of an open ticket, the latest first."""
        return [one for one in self.latest if one.ticket_id == ticket_id]

    async def _read(self) -> list[DeliveredNotification]:
        ids = self._tickets()
        if not ids:
            return []
        found = await self._store.read(lambda conn: deliveries_of(conn, ids))
        return [one for some in found.values() for one in some]


def delivery_rows(deliveries: Iterable[DeliveredNotification]) -> list[api.ReceiverDelivery]:
    """
    Return a row for each receiver and status, the latest first.

    Several alerts of one ticket, as when its severity rose, are one row with the first and the last time.
    """
    groups: dict[tuple[str, str], list[DeliveredNotification]] = {}
    for one in deliveries:
        groups.setdefault((one.receiver, one.status), []).append(one)
    rows = [
        api.ReceiverDelivery(
            receiver=receiver,
            status=status,
            first_at=min(one.first_at for one in group),
            at=max(one.last_at for one in group),
        )
        for (receiver, status), group in groups.items()
    ]
    return sorted(rows, key=lambda row: (-row.at, row.receiver, row.status))
