"""Read pages of the event log and its archive, with the sequence number and hash of each event."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, Row, Table, select

from queenright.health.store.tables import AUDIT_ARCHIVE, EVENTS
from queenright.runtime.events import EventType


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """A row of the log or its archive."""

    seq: int
    hash: bytes
    """The hash of this row and all before it."""
    archived: bool
    """Whether retention moved the event to the archive."""
    event: dict[str, Any]
    """The row's other columns by name, with ``data`` parsed. This version may not know the type."""


def read_page(
    conn: Connection,
    *,
    before: int | None = None,
    types: Collection[EventType] | None = None,
    agent_id: str | None = None,
    since: float | None = None,
    until: float | None = None,
    limit: int = 100,
) -> list[LoggedEvent]:
    """
    Return events, newest first.

    Args:
        before: Only rows with a lower sequence number, for paging.
        types: Only these types; None for all, an empty collection for none.
        since: Only events with a time at or after this one, in seconds since the epoch.
    """
    events: list[LoggedEvent] = []
    for table in (EVENTS, AUDIT_ARCHIVE):
        if len(events) < limit:
            events += _read_table(conn, table, before, types, agent_id, since, until, limit - len(events))
    return events


def _read_table(
    conn: Connection,
    table: Table,
    before: int | None,
    types: Collection[EventType] | None,
    agent_id: str | None,
    since: float | None,
    until: float | None,
    limit: int,
) -> list[LoggedEvent]:
    names = [*EVENTS.columns.keys()]
    query = select(*(table.c[name] for name in names)).order_by(table.c.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(table.c.seq < before)
    if since is not None:
        query = query.where(table.c.time >= since)
    if until is not None:
        query = query.where(table.c.time < until)
    if agent_id is not None:
        query = query.where(table.c.agent_id == agent_id)
    queries = [query]
    if types is not None or agent_id is not None:
        # One query per type, because the index is in the order of the log within a type.
        queries = [
            query.where(table.c.type == kind.value) for kind in (EventType if types is None else types)
        ]
    rows = [row for query in queries for row in conn.execute(query)]
    rows.sort(key=lambda row: -row.seq)
    return [_to_logged_event(row, is_archived=table is AUDIT_ARCHIVE) for row in rows[:limit]]


def _to_logged_event(row: Row[Any], *, is_archived: bool) -> LoggedEvent:
    event = {name: value for name, value in row._mapping.items() if name not in ("seq", "hash")}
    event["data"] = orjson.loads(row.data)
    return LoggedEvent(seq=row.seq, hash=bytes(row.hash), archived=is_archived, event=event)
