"""The emergency stop: one switch, kept over restarts, that stops all actions but not detection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import Connection, select

from queenright.health.event_log import append_events
from queenright.health.store import Store
from queenright.health.tables import SWITCHES
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent, Clock, EventType

_NAME: Final = "emergency_stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchState:
    """The state of the switch, since when (seconds since the epoch), who set it and why."""

    on: bool = False
    by: str = ""
    reason: str = ""
    changed_at: float | None = None


class EmergencyStop:
    """The emergency stop of one store."""

    def __init__(self, store: Store, *, clock: Clock, publish: Callable[..., None]) -> None:
        self._store = store
        self._clock = clock
        self._publish = publish
        self.state = SwitchState()
        self._wanted = self.state
        self._writing = asyncio.Lock()

    @property
    def reason(self) -> str | None:
        """Why all actions are stopped, and what to do; None if it is off."""
        if not self.state.on:
            return None
        set_by = f"set by {self.state.by}{_moment(self.state.changed_at, self._clock())}: {self.state.reason}"
        return f"the emergency stop is on ({set_by}); release it first: queenright stop-acting off"

    async def load(self) -> None:
        """Load the state from before a restart."""

        def read(conn: Connection) -> SwitchState:
            row = conn.execute(select(SWITCHES).where(SWITCHES.c.name == _NAME)).one_or_none()
            if row is None:
                return SwitchState()
            return SwitchState(on=bool(row.is_on), by=row.by, reason=row.reason, changed_at=row.changed_at)

        self.state = await self._store.read(read)

    async def set(self, on: bool, *, by: str, reason: str) -> SwitchState:
        """
        Set the switch, and return its state; it is durable on return.

        Raises:
            StoreError: Writing failed. Turning it on takes effect anyway: stopping must not
                wait for a disk.
        """
        state = SwitchState(on=on, by=redact(by, 100), reason=redact(reason, 500), changed_at=self._clock())
        self._wanted = state
        if on:
            self.state = state
        data = {"on": on, "by": state.by, "reason": state.reason}
        event = AgentEvent(type=EventType.EMERGENCY_STOP_CHANGED, time=self._clock(), data=data)

        def write(conn: Connection) -> None:
            conn.execute(SWITCHES.delete().where(SWITCHES.c.name == _NAME))
            conn.execute(
                SWITCHES.insert().values(
                    name=_NAME, is_on=on, by=state.by, reason=state.reason, changed_at=state.changed_at
                )
            )
            append_events(conn, [event])

        async with self._writing:
            await self._store.transact(write)
            if self._wanted is state:  # unless it was turned on while the release was being written
                self.state = state
        self._publish(event)
        return state


def _moment(at: float | None, now: float) -> str:
    """Return a time, with the date if that is not today's."""
    if at is None:
        return ""
    then = datetime.fromtimestamp(at, UTC)
    today = then.date() == datetime.fromtimestamp(now, UTC).date()
    return f" at {then:%H:%M} UTC" if today else f" on {then:%Y-%m-%d %H:%M} UTC"
