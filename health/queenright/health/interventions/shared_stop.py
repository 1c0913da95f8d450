"""
The emergency stop of a cluster: one switch for all partitions, in the default schema of the database.

Any process can set it, even while partitions have no owner. Its events are stored next to it until the owner
of the first partition has recorded them.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Final

import psycopg

from queenright.health.cluster.cluster_lease import ClusterLease
from queenright.health.cluster.shared_values import SharedValues
from queenright.health.cluster.switch_state import SwitchState
from queenright.health.interventions.emergency_stop import SWITCH_NAME, stop_event
from queenright.runtime.events import AgentEvent, EventType

UNRECORDED: Final = "emergency_stop_events"
"""The name of the shared value that has the events which are not in the event log yet."""
_STEP_SECONDS: Final = 0.001
"""Added to the time of the last change, so that a later change has a later time even if a clock is behind."""


class SharedStop:
    """
    The switch, on the connection of a process. Methods raise `LeaseError` if the database cannot be reached.
    """

    def __init__(self, lease: ClusterLease, values: SharedValues) -> None:
        self._lease = lease
        self._values = values

    async def read(self) -> SwitchState:
        """Return the state of the switch."""
        async with self._lease.session() as conn:
            return await _read(conn)

    async def set(self, wanted_state: SwitchState) -> SwitchState:
        """Set the switch, and return its state. ``changed_at`` is later than before."""
        async with self._lease.session() as conn, conn.transaction():
            # Lock the table, because there may be no row yet.
            await conn.execute("LOCK TABLE switches IN SHARE ROW EXCLUSIVE MODE")
            before = (await _read(conn)).changed_at or 0.0
            changed_at = max(wanted_state.changed_at or 0.0, before + _STEP_SECONDS)
            state = replace(wanted_state, changed_at=changed_at)
            await conn.execute(
                "INSERT INTO switches (name, is_on, by, reason, changed_at)"
                " VALUES (%(name)s, %(on)s, %(by)s, %(reason)s, %(changed_at)s)"
                " ON CONFLICT (name) DO UPDATE SET is_on = excluded.is_on, by = excluded.by,"
                " reason = excluded.reason, changed_at = excluded.changed_at",
                {"name": SWITCH_NAME, **asdict(state)},
            )
            event = stop_event(state)
            row = {"id": event.id, "time": event.time, "data": event.data}
            await self._values.update_in(conn, UNRECORDED, lambda rows: [*(rows or ()), row])
        return state


def unrecorded_events(rows: list[dict[str, Any]] | None) -> list[AgentEvent]:
    """Return the events of the value `UNRECORDED`."""
    return [
        AgentEvent(id=row["id"], type=EventType.EMERGENCY_STOP_CHANGED, time=row["time"], data=row["data"])
        for row in rows or ()
    ]


async def _read(conn: psycopg.AsyncConnection[dict[str, Any]]) -> SwitchState:
    cursor = await conn.execute(
        'SELECT is_on AS "on", by, reason, changed_at FROM switches WHERE name = %(name)s',
        {"name": SWITCH_NAME},
    )
    row = await cursor.fetchone()
    return SwitchState() if row is None else SwitchState(**row)
