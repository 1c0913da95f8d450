"""
Retention: delete rows that are older than the retention period, in small batches. The period is set by
``health_monitoring.retention`` (``RetentionSettings``).

Only the oldest rows of the event log are deleted, so that the hash chain of the remaining rows can be
verified. Rows of the audit trail are moved to the archive in the same transaction, and stay there for
``audit_days``.

A row's hash is checked before the row is deleted. A changed row and all rows after it stay, and an error is
logged. An event's age is computed from its own time. Rows after an event within the retention period stay.
The age of an event with a future time is unknown, so it is deleted together with an older row after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ColumnElement, Connection, Table, and_, delete, func, insert, select, update

from queenright.health import settings as health_settings
from queenright.health.store.event_chain import (
    ARCHIVE_BASE_CHANGED,
    BEGINNING,
    archive_base_check,
    archive_link,
    is_archive_base_whole,
    is_whole,
    link,
)
from queenright.health.store.event_log import EVENT_COLUMNS
from queenright.health.store.keyed_requests import KEPT_SECONDS
from queenright.health.store.tables import (
    APPROVALS,
    AUDIT_ARCHIVE,
    CALLBACKS,
    ESCALATIONS,
    EVENT_LOG_HEAD,
    EVENTS,
    INSTRUCTIONS,
    INTERVENTIONS,
    KEYED_REQUESTS,
    OUTBOX,
    OUTBOX_DELIVERIES,
    RECEIVER_NOTIFICATIONS,
    RECOVERIES,
    TICKETS,
)
from queenright.runtime.events import ALERT_CLASS, Clock

if TYPE_CHECKING:
    from queenright.health.store.store import Store

Sleep = Callable[[float], Awaitable[None]]

_DAY: Final = 86_400.0
INTERVAL_SECONDS: Final = 3600.0
"""The seconds between two runs. Retention periods are in days, so an hour is precise enough."""
_BATCH_ROWS: Final = 500
"""The number of rows in one transaction. Another write waits for at most one batch."""
_PAUSE_SECONDS: Final = 0.1
"""
The seconds between two batches, in which others can write. 500 rows took 50 ms on a busy machine (SQLite, 2.1
GHz), so retention deletes about 3,000 rows a second and takes a third of the writer's time.
"""

_AUDIT_TYPES: Final = frozenset(kind.value for kind in ALERT_CLASS)
_WIDTH: Final = len(EVENT_COLUMNS)
_OPEN_RECOVERY_STATES: Final = ("waiting", "starting", "watching")
"""The states of open recoveries."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneResult:
    """The result of one batch."""

    rows: int = 0
    """The number of rows deleted from all tables, including archived rows."""
    archived_rows: int = 0
    """The number of rows moved from the event log to the archive."""
    is_done: bool = True
    """Whether no old row is left to delete."""
    refusal: str = ""
    """Why old rows stay although they are due: their hash chain is broken. Empty if no row stays."""


def prune(
    conn: Connection, now: float, settings: health_settings.RetentionSettings, room: int = _BATCH_ROWS
) -> PruneResult:
    """
    Delete at most ``room`` old rows.

    Raises:
        sqlalchemy.exc.DBAPIError: The database failed. The caller rolls back.
    """
    old = now - settings.days * _DAY
    log = _prune_log(conn, old, now, room)
    rows, copies, faults = log.rows, log.archived_rows, [log.refusal]
    if rows < room:
        archive = _prune_archive(conn, now - settings.audit_days * _DAY, now, room - rows)
        rows, faults = rows + archive.rows, [*faults, archive.refusal]
    if rows < room:
        rows += _prune_outbox(conn, old, room - rows)
    for table, key, where in _list_old_rows(old, now):
        if rows < room:
            rows += _delete_rows(conn, table, key, where, room - rows)
    return PruneResult(
        rows=rows,
        archived_rows=copies,
        is_done=rows < room,
        refusal="; ".join(fault for fault in faults if fault),
    )


class Retention:
    """Deletes old rows in the background while the service runs."""

    def __init__(self, store: Store, settings: health_settings.RetentionSettings, *, clock: Clock) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._fault = ""

    def replace_settings(self, settings: health_settings.RetentionSettings) -> None:
        """Replace the settings. They apply from the next batch."""
        self._settings = settings

    async def run(self, sleep: Sleep = asyncio.sleep) -> None:
        """Prune now and every hour. Failures are logged and retried. Runs forever."""
        while True:
            try:
                await self.prune(sleep)
            except Exception:
                logger.exception("Old events and records could not be deleted; retrying later")
            await sleep(INTERVAL_SECONDS)

    async def prune(self, sleep: Sleep = asyncio.sleep) -> PruneResult:
        """
        Delete all old rows in batches, with pauses in between, and return the totals.

        Raises:
            StoreError: The database failed. Rows of earlier batches stay deleted.
        """
        rows = copies = 0
        while True:
            batch = await self._store.transact(lambda conn: prune(conn, self._clock(), self._settings))
            rows, copies = rows + batch.rows, copies + batch.archived_rows
            if batch.is_done:
                break
            await sleep(_PAUSE_SECONDS)
        self._log(rows, copies, batch.refusal)
        return PruneResult(rows=rows, archived_rows=copies, refusal=batch.refusal)

    def _log(self, rows: int, copies: int, fault: str) -> None:
        if rows:
            logger.info("Deleted %d old rows, of which %d events went to the audit archive", rows, copies)
        if fault and fault != self._fault:
            logger.error(
                "Old events stay, because the log was changed: %s; run `queenright audit verify`", fault
            )
        self._fault = fault


def _prune_log(conn: Connection, oldest_time: float, now: float, room: int) -> PruneResult:
    """Delete the oldest rows of the log, and move those of the audit trail to the archive."""
    head = conn.execute(select(EVENT_LOG_HEAD)).one()
    query = select(*EVENT_COLUMNS, EVENTS.c.hash).where(EVENTS.c.seq > head.base_length)
    rows = _select_old(conn.execute(query.order_by(EVENTS.c.seq).limit(room)).all(), oldest_time, now)
    digest, archive = head.base_hash or BEGINNING, head.archive_hash or BEGINNING
    base_length, kept_rows, fault = head.base_length, [], ""
    for row in rows:
        if row.seq != base_length + 1 or link(digest, row[:_WIDTH]) != row.hash:
            fault = f"row {base_length + 1} of the event log is missing or does not match its hash"
            break
        if row.type in _AUDIT_TYPES:
            archive = archive_link(archive, digest, row.hash)
            kept_rows.append({**row._mapping, "previous_hash": digest, "archive_hash": archive})
        digest, base_length = row.hash, row.seq
    count = base_length - head.base_length
    if not count:
        return PruneResult(refusal=fault)
    if kept_rows:
        conn.execute(insert(AUDIT_ARCHIVE), kept_rows)
    conn.execute(
        update(EVENT_LOG_HEAD).values(base_length=base_length, base_hash=digest, archive_hash=archive)
    )
    # This must follow the update of the head, because triggers allow deleting only rows that the head records
    # as deleted.
    conn.execute(delete(EVENTS).where(EVENTS.c.seq.between(head.base_length + 1, base_length)))
    return PruneResult(rows=count, archived_rows=len(kept_rows), refusal=fault)


def _prune_archive(conn: Connection, oldest_time: float, now: float, room: int) -> PruneResult:
    """Delete the oldest rows of the archive."""
    head = conn.execute(select(EVENT_LOG_HEAD)).one()
    if not is_archive_base_whole(head):
        return PruneResult(refusal=ARCHIVE_BASE_CHANGED)
    query = select(*(AUDIT_ARCHIVE.c[c.name] for c in EVENTS.columns))
    query = query.add_columns(AUDIT_ARCHIVE.c.previous_hash, AUDIT_ARCHIVE.c.archive_hash)
    query = query.where(AUDIT_ARCHIVE.c.seq > head.archive_base_seq)
    rows = _select_old(conn.execute(query.order_by(AUDIT_ARCHIVE.c.seq).limit(room)).all(), oldest_time, now)
    digest, base_seq, count, fault = head.archive_base_hash or BEGINNING, head.archive_base_seq, 0, ""
    for row in rows:
        if not is_whole(row) or row.archive_hash != archive_link(digest, row.previous_hash, row.hash):
            fault = f"row {row.seq} of the audit archive does not match its hash"
            break
        digest, base_seq, count = row.archive_hash, row.seq, count + 1
    if count:
        check = archive_base_check(base_seq, digest)
        conn.execute(
            update(EVENT_LOG_HEAD).values(
                archive_base_seq=base_seq, archive_base_hash=digest, archive_base_check=check
            )
        )
        conn.execute(
            delete(AUDIT_ARCHIVE).where(AUDIT_ARCHIVE.c.seq.between(head.archive_base_seq + 1, base_seq))
        )
    return PruneResult(rows=count, refusal=fault)


def _select_old(rows: Sequence[Any], oldest_time: float, now: float) -> Sequence[Any]:
    """Return the rows at the beginning that are old enough to delete."""
    end = 0
    for at, row in enumerate(rows):
        if not isinstance(row.time, float):
            return rows[: at + 1]  # the service did not write this row, so its hash check will fail
        if oldest_time <= row.time <= now:
            break
        if row.time < oldest_time:
            end = at + 1
    return rows[:end]


def _prune_outbox(conn: Connection, oldest_time: float, room: int) -> int:
    """Delete notifications that have ended, with their deliveries."""
    # Keep the last notification, because SQLite would reuse its number.
    last = select(func.max(OUTBOX.c.id)).scalar_subquery()
    is_over = and_(OUTBOX.c.active.is_(False), OUTBOX.c.updated_at < oldest_time, OUTBOX.c.id < last)
    ids = conn.execute(select(OUTBOX.c.id).where(is_over).limit(room)).scalars().all()
    if ids:
        conn.execute(delete(OUTBOX_DELIVERIES).where(OUTBOX_DELIVERIES.c.outbox_id.in_(ids)))
        conn.execute(delete(OUTBOX).where(OUTBOX.c.id.in_(ids)))
    return len(ids)


def _list_old_rows(
    oldest_time: float, now: float
) -> list[tuple[Table, ColumnElement[Any], ColumnElement[bool]]]:
    """Return the old rows of the other tables: table, key and condition."""
    return [
        # ``first_seen`` is always earlier than ``closed_at``, and has an index.
        (
            TICKETS,
            TICKETS.c.ticket_id,
            and_(TICKETS.c.first_seen < oldest_time, TICKETS.c.closed_at < oldest_time),
        ),
        (INTERVENTIONS, INTERVENTIONS.c.intervention_id, INTERVENTIONS.c.created_at < oldest_time),
        (INSTRUCTIONS, INSTRUCTIONS.c.instruction_id, INSTRUCTIONS.c.expires_at < oldest_time),
        (
            ESCALATIONS,
            ESCALATIONS.c.escalation_id,
            and_(ESCALATIONS.c.status != "pending", ESCALATIONS.c.created_at < oldest_time),
        ),
        (
            APPROVALS,
            APPROVALS.c.approval_id,
            and_(APPROVALS.c.is_open.is_(False), APPROVALS.c.created_at < oldest_time),
        ),
        (
            RECOVERIES,
            RECOVERIES.c.recovery_id,
            and_(RECOVERIES.c.status.not_in(_OPEN_RECOVERY_STATES), RECOVERIES.c.created_at < oldest_time),
        ),
        # Alerts that still fire are renewed every few hours.
        (
            RECEIVER_NOTIFICATIONS,
            RECEIVER_NOTIFICATIONS.c.id,
            RECEIVER_NOTIFICATIONS.c.notified_at < oldest_time,
        ),
        (CALLBACKS, CALLBACKS.c.callback_id, CALLBACKS.c.received_at < oldest_time),
        (KEYED_REQUESTS, KEYED_REQUESTS.c.key, KEYED_REQUESTS.c.began_at < now - KEPT_SECONDS),
    ]


def _delete_rows(
    conn: Connection, table: Table, key: ColumnElement[Any], condition: ColumnElement[bool], room: int
) -> int:
    keys = conn.execute(select(key).where(condition).limit(room)).scalars().all()
    if keys:
        conn.execute(delete(table).where(key.in_(keys), condition))
    return len(keys)
