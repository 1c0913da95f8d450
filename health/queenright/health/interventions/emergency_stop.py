"""The emergency stop: a durable switch that stops all actions, but not detection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import Connection, select

from queenright.health.cluster.switch_state import SwitchState
from queenright.health.store.event_log import append_events
from queenright.health.store.store import Store
from queenright.health.store.tables import SWITCHES
from queenright.instrumentation.redaction import redact
from queenright.runtime.events import AgentEvent, Clock, EventType

SWITCH_NAME: Final = "emergency_stop"


def new_state(on: bool, *, by: str, reason: str, now: float) -> SwitchState:
    """Return the new state of the switch, with secrets masked."""
    return SwitchState(on=on, by=redact(by, 100), reason=redact(reason, 500), changed_at=now)


def stop_event(state: SwitchState) -> AgentEvent:
    """Return the event that records a change of the switch."""
    return AgentEvent(
        type=EventType.EMERGENCY_STOP_CHANGED,
        time=state.changed_at or 0.0,
        data={"on": state.on, "by": state.by, "reason": state.reason},
    )


class EmergencyStop:
    """
    The emergency stop of a single process, or of a cluster, where all partitions share the switch.

    Args:
        read: Reads the state of the cluster's shared switch; None if the switch is in the store.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        publish: Callable[..., None],
        read: Callable[[], Awaitable[SwitchState]] | None = None,
    ) -> None:
        self._store = store
        self._read = read
        self._clock = clock
        self._publish = publish
        self.state = SwitchState()
        self._newest = self.state
        self._write_lock = asyncio.Lock()

    @property
    def reason(self) -> str | None:
        """Why all actions are stopped, and what to do. None if the stop is off."""
        if not self.state.on:
            return None
        state = self.state
        set_by = f"set by {state.by}{_format_moment(state.changed_at, self._clock())}: {state.reason}"
        return f"the emergency stop is on ({set_by}); turn it off first: queenright stop-acting off"

    async def load(self) -> None:
        """Load the state from before a restart."""

        def read(conn: Connection) -> SwitchState:
            row = conn.execute(select(SWITCHES).where(SWITCHES.c.name == SWITCH_NAME)).one_or_none()
            if row is None:
                return SwitchState()
            return SwitchState(on=bool(row.is_on), by=row.by, reason=row.reason, changed_at=row.changed_at)

        self.state = await (self._store.read(read) if self._read is None else self._read())

    async def set(self, on: bool, *, by: str, reason: str) -> SwitchState:
        """
        Set the switch, and return its state, which is durable on return.

        Raises:
            StoreError: Writing failed. Turning the stop on takes effect anyway, because it must not depend on
                the disk.
        """
        state = new_state(on, by=by, reason=reason, now=self._clock())
        self._newest = state
        if on:
            self.state = state
        event = stop_event(state)

        def write(conn: Connection) -> None:
            conn.execute(SWITCHES.delete().where(SWITCHES.c.name == SWITCH_NAME))
            conn.execute(
                SWITCHES.insert().values(
                    name=SWITCH_NAME, is_on=on, by=state.by, reason=state.reason, changed_at=state.changed_at
                )
            )
            append_events(conn, [event])

        async with self._write_lock:
            await self._store.transact(write)
            if self._newest is state:  # unless the stop was turned on while its release was being written
                self.state = state
        self._publish(event)
        return state

    async def record(self, events: Sequence[AgentEvent]) -> None:
        """
        Append the events that the log does not have yet, and publish all of them.

        Raises:
            StoreError: Writing failed.
        """
        await self._store.append(events)
        self._publish(*events)


def _format_moment(at: float | None, now: float) -> str:
    """Return when the switch was set: the time, and the date if it is not today."""
    if at is None:
        return ""
    moment = datetime.fromtimestamp(at, UTC)
    is_today = moment.date() == datetime.fromtimestamp(now, UTC).date()
    return f" at {moment:%H:%M} UTC" if is_today else f" on {moment:%Y-%m-%d %H:%M} UTC"
