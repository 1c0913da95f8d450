"""The latest notifications, in memory."""

from __future__ import annotations

from typing import Final

from queenright.alerting.notification import NotificationRecord, list_notifications
from queenright.health.store import Store
from queenright.runtime.events import Clock, EventType
from queenright.server.recent.latest import Latest

CHANGING: Final = frozenset(
    {
        EventType.WORKER_ESCALATION_TICKET,
        EventType.QUEEN_INTERVENTION_REQUESTED,
        EventType.TICKET_REESCALATED,
        EventType.TICKET_UNACKNOWLEDGED,
        EventType.TICKET_RESOLVED,
        EventType.NOTIFICATION_DELIVERED,
        EventType.NOTIFICATION_FAILED,
    }
)
"""Events that may have changed the outbox."""


class LatestNotifications(Latest[NotificationRecord]):
    """
    The newest notifications and their deliveries.

    Args:
        store: The store.
        clock: Seconds since the epoch.
        limit: Maximum number.
    """

    def __init__(self, store: Store, *, clock: Clock, limit: int = 50) -> None:
        super().__init__(
            lambda: store.read(lambda conn: list_notifications(conn, limit, now=clock())),
            what="notifications",
        )
