"""The snapshot of the monitor in the database. Only the newest complete snapshot is kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Final

import orjson
from sqlalchemy import Connection, delete, insert, select

from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.monitoring.monitor_snapshot import (
    SNAPSHOT_FORMAT,
    SnapshotError,
    SnapshotHead,
    restore_snapshot,
)
from queenright.health.store.tables import EVENT_LOG_HEAD, SNAPSHOT_PARTS
from queenright.runtime.events import AgentEvent, EventType

_log = logging.getLogger(__name__)

_HEAD: Final = 0
"""The part number of the head. It is written last, so a snapshot without a head is incomplete."""


def write_part(conn: Connection, snapshot_id: str, number: int, data: bytes) -> None:
    """Write a compressed part. Parts are numbered from 1."""
    conn.execute(insert(SNAPSHOT_PARTS).values(snapshot_id=snapshot_id, number=number, data=data))


def complete_snapshot(conn: Connection, snapshot_id: str, parts: int, head: SnapshotHead) -> None:
    """Mark a snapshot with ``parts`` written parts as complete, and delete all others."""
    fields = {
        "format": SNAPSHOT_FORMAT,
        "parts": parts,
        "time": head.time,
        "seq": head.seq,
        "unobserved": head.unobserved,
        "unlogged": [event.to_dict() for event in head.unlogged],
    }
    write_part(conn, snapshot_id, _HEAD, orjson.dumps(fields))
    conn.execute(delete(SNAPSHOT_PARTS).where(SNAPSHOT_PARTS.c.snapshot_id != snapshot_id))


def read_snapshot(conn: Connection, monitor: HealthMonitor) -> SnapshotHead | None:
    """
    Restore the snapshot in a new monitor. If there is no readable snapshot, log the reason and return None.
    """
    row = conn.execute(
        select(SNAPSHOT_PARTS.c.snapshot_id, SNAPSHOT_PARTS.c.data).where(SNAPSHOT_PARTS.c.number == _HEAD)
    ).first()
    if row is None:
        return None
    try:
        head, parts = _parse_head(row.data)
        last = conn.execute(select(EVENT_LOG_HEAD.c.length)).scalar_one()
        if head.seq > last:
            raise SnapshotError(f"it has event {head.seq}, and the log has {last}")
        restore_snapshot(monitor, _read_parts(conn, row.snapshot_id, parts))
    except SnapshotError as error:
        _log.warning("reading the last day of the event log, as the snapshot cannot be used: %s", error)
        return None
    return head


def _parse_head(data: bytes) -> tuple[SnapshotHead, int]:
    try:
        fields: dict[str, Any] = orjson.loads(data)
        if fields["format"] != SNAPSHOT_FORMAT:
            raise SnapshotError("another version wrote it")
        head = SnapshotHead(
            time=float(fields["time"]),
            seq=int(fields["seq"]),
            unobserved=tuple(map(int, fields["unobserved"])),
            unlogged=tuple(
                AgentEvent(**event | {"type": EventType(event["type"])}) for event in fields["unlogged"]
            ),
        )
        return head, int(fields["parts"])
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotError(f"its head is damaged: {error!r}") from error


def _read_parts(conn: Connection, snapshot_id: str, parts: int) -> Iterator[bytes]:
    """Yield the parts one by one, because all of them together may be large."""
    for number in range(1, parts + 1):
        query = select(SNAPSHOT_PARTS.c.data).where(
            SNAPSHOT_PARTS.c.snapshot_id == snapshot_id, SNAPSHOT_PARTS.c.number == number
        )
        data = conn.execute(query).scalar()
        if data is None:
            raise SnapshotError(f"part {number} of {parts} is missing")
        yield data
