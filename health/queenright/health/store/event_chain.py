"""
The hash chains of the event log and of its archive.

The ``hash`` of a row of the log is SHA-256 over the previous row's hash (32 zero bytes for the first row)
followed by the UTF-8 bytes of a JSON array of the row's columns, ``seq`` to ``data``, in the table's order.
``event_log_head`` has the length and the last hash, so that a truncated log is detected. It also records
which of the oldest rows retention has deleted (``queenright.health.store.retention``).

Rows of the audit trail are kept longer, in ``audit_archive``. Each has ``previous_hash``, so that it can be
verified alone, and ``archive_hash``, which is SHA-256 over the previous row's ``archive_hash``,
``previous_hash`` and ``hash``, so that no row can be removed. Their numbers have gaps, so the beginning of
the archive is also hashed: ``archive_base_check`` of the head.

A chain without a key cannot detect that all rows after some row were rewritten together with the head. To
detect that, store ``Verification.head`` elsewhere from time to time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Row, Select, select
from sqlalchemy.exc import DBAPIError

from queenright.health.store.tables import AUDIT_ARCHIVE, EVENT_LOG_HEAD, EVENTS

BEGINNING: Final = bytes(32)
"""The hash before the first row."""

ARCHIVE_BASE_CHANGED: Final = "the record of where the archive begins was changed"
"""The reason if an archive fails verification although its rows may be intact."""

_HASH_COLUMNS: Final = tuple(column.name for column in EVENTS.columns if column.name != "hash")
_WIDTH: Final = len(_HASH_COLUMNS)
_PAGE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of verifying a chain: whether it is intact, otherwise where and why it is broken."""

    ok: bool
    rows: int
    """The number of intact rows, counted from the first."""
    first_bad: int | None = None
    """The sequence number of the first row that is changed, missing or added."""
    reason: str = ""
    head: str = ""
    """The hash of the last intact row, in hex."""
    let_go: int = 0
    """The sequence number up to which retention deleted rows."""


def link(previous: bytes, row: Sequence[Any]) -> bytes | None:
    """
    Return the hash of a row (``seq`` to ``data``), or None if the row has values that the log never writes.
    """
    try:
        return hashlib.sha256(previous + orjson.dumps(tuple(row))).digest()
    except TypeError:
        return None


def archive_link(archive_hash: bytes, previous: bytes, link: bytes) -> bytes:
    """
    Return the ``archive_hash`` of a row, from the previous row's, and the row's ``previous_hash`` and
    ``hash``.
    """
    return hashlib.sha256(archive_hash + previous + link).digest()


def archive_base_check(base_seq: int, base_hash: bytes | None) -> bytes | None:
    """Return the expected ``archive_base_check`` of the head, or None if no row was deleted."""
    if not base_seq and base_hash is None:
        return None
    return hashlib.sha256((base_hash or BEGINNING) + b"%d" % base_seq).digest()


def is_archive_base_whole(head: Row[Any]) -> bool:
    """Return whether the head's record of the archive's beginning is intact."""
    seq, digest = head.archive_base_seq, head.archive_base_hash
    if not isinstance(seq, int) or not (digest is None or _is_hash(digest)):
        return False
    return bool(head.archive_base_check == archive_base_check(seq, digest))


def is_whole(row: Row[Any]) -> bool:
    """
    Return whether a row of the archive (``seq`` to ``previous_hash``) is unchanged since it was in the log.
    """
    return _is_hash(row.previous_hash) and row.hash == link(row.previous_hash, row[:_WIDTH])


def verify(conn: Connection) -> Verification:
    """
    Verify the whole log. Rows are read in pages.

    Detects rows that were changed, removed, inserted or moved, and a tail that was cut off or added.
    """
    head = _read_head(conn)
    base_length = head.base_length if head is not None else 0
    digest = (head.base_hash if head is not None else None) or BEGINNING
    at = base_length

    def make_failure(reason: str, seq: int) -> Verification:
        return Verification(
            ok=False,
            rows=at - base_length,
            first_bad=seq,
            reason=reason,
            head=digest.hex(),
            let_go=base_length,
        )

    if not _is_hash(digest):
        digest = BEGINNING
        return make_failure("the record of where the log begins was changed", base_length + 1)
    pages = _read_rows(conn, select(*(EVENTS.c[name] for name in _HASH_COLUMNS), EVENTS.c.hash))
    while True:
        seq = at + 1
        try:
            row = next(pages, None)
        except DBAPIError as error:
            return make_failure(f"row {seq} cannot be read: {error.orig}", seq)
        if row is None:
            break
        if row.seq != seq:
            problem = "missing" if row.seq > seq else "added"
            return make_failure(f"row {min(row.seq, seq)} is {problem}", min(row.seq, seq))
        own_hash = link(digest, row[:_WIDTH])
        if own_hash is None or own_hash != row.hash:
            return make_failure(f"row {seq} does not match its hash", seq)
        digest, at = own_hash, seq
    if head is None:
        return make_failure("the record of the log's length is missing", at + 1)
    if head.length > at:
        return make_failure(f"rows are missing at the end: {head.length - at:,}", at + 1)
    if head.length < at:
        return make_failure(
            f"rows were added after the last that was written: {at - head.length:,}", head.length + 1
        )
    if head.hash != digest:
        return make_failure(f"row {at} does not end in the hash that was recorded", max(at, 1))
    return Verification(ok=True, rows=at - base_length, head=digest.hex(), let_go=base_length)


def verify_archive(conn: Connection) -> Verification:
    """
    Verify the whole audit archive. Rows are read in pages.

    Detects rows that were changed, removed, inserted or moved, and a tail that was cut off or added.
    """
    head = _read_head(conn)
    base_seq = head.archive_base_seq if head is not None else 0
    digest = (head.archive_base_hash if head is not None else None) or BEGINNING
    at, rows = base_seq, 0

    def make_failure(reason: str, seq: int) -> Verification:
        return Verification(
            ok=False, rows=rows, first_bad=seq, reason=reason, head=digest.hex(), let_go=base_seq
        )

    if head is None:
        return make_failure("the record of the archive's end is missing", 1)
    if not is_archive_base_whole(head):
        digest = BEGINNING
        return make_failure(ARCHIVE_BASE_CHANGED, base_seq + 1)
    names = (*_HASH_COLUMNS, "hash", "previous_hash", "archive_hash")
    pages = _read_rows(conn, select(*(AUDIT_ARCHIVE.c[name] for name in names)))
    while True:
        try:
            row = next(pages, None)
        except DBAPIError as error:
            return make_failure(f"the row after {at} cannot be read: {error.orig}", at + 1)
        if row is None:
            break
        if not base_seq < row.seq <= head.base_length:
            return make_failure(f"row {row.seq} is added", row.seq)
        if not is_whole(row):
            return make_failure(f"row {row.seq} does not match its hash", row.seq)
        own_hash = archive_link(digest, row.previous_hash, row.hash)
        if own_hash != row.archive_hash:
            return make_failure(
                f"row {row.seq} does not follow row {at}: it was changed, or one between them is missing",
                row.seq,
            )
        digest, at, rows = own_hash, row.seq, rows + 1
    if (head.archive_hash or BEGINNING) != digest:
        return make_failure(f"the last rows, after row {at}, are missing or changed", at + 1)
    return Verification(ok=True, rows=rows, head=digest.hex(), let_go=base_seq)


def _read_head(conn: Connection) -> Row[Any] | None:
    heads = conn.execute(select(EVENT_LOG_HEAD)).all()
    return heads[0] if len(heads) == 1 else None


def _is_hash(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == len(BEGINNING)


def _read_rows(conn: Connection, query: Select[Any]) -> Iterator[Any]:
    """Yield every row. A page that cannot be read is read row by row, up to the unreadable row."""
    seq = query.selected_columns.seq
    after, size = None, _PAGE
    query = query.order_by(seq)
    while True:
        page = query.limit(size) if after is None else query.where(seq > after).limit(size)
        try:
            rows = conn.execute(page).all()
        except DBAPIError:
            if size == 1:
                raise
            size = 1
            continue
        if not rows:
            return
        after = rows[-1].seq
        yield from rows
