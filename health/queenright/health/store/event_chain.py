"""
The hash chains of the event log and of its archive.

``hash`` of a row of the log is SHA-256 over the previous row's hash (32 zero bytes before the first)
followed by the UTF-8 bytes of a JSON array of the row's columns, ``seq`` to ``data``, in the table's
order. ``event_log_head`` holds length and last hash, so that a truncated log is detected, and where the log
begins since its oldest rows were deleted (``queenright.health.store.retention``).

Rows of the audit trail are kept longer in ``audit_archive``: complete, with ``previous_hash``, so that each
can be verified alone, and with ``archive_hash``, SHA-256 over the ``archive_hash`` of the row before,
``previous_hash`` and ``hash``, so that none can be removed. Their numbers have gaps, so the beginning is
hashed too: ``archive_base_check`` of the head.

A chain without a key cannot detect that every row from some point on was rewritten, and the head too. Against
that, store ``Verification.head`` elsewhere from time to time.
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
"""Why an archive fails verification although its rows may be intact."""

_HASH_COLUMNS: Final = tuple(column.name for column in EVENTS.columns if column.name != "hash")
_WIDTH: Final = len(_HASH_COLUMNS)
_PAGE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of verifying a chain: whether it is intact, and where and how it is broken."""

    ok: bool
    rows: int
    """Intact rows, from the first on."""
    first_bad: int | None = None
    """The first sequence number that is changed, missing or added."""
    reason: str = ""
    head: str = ""
    """The hash, in hex, up to the last intact row."""
    let_go: int = 0
    """The sequence number up to which retention deleted rows."""


def link(previous: bytes, row: Sequence[Any]) -> bytes | None:
    """Return the hash of a row (``seq`` to ``data``), or None if the log never writes such values."""
    try:
        return hashlib.sha256(previous + orjson.dumps(tuple(row))).digest()
    except TypeError:
        return None


def archive_link(archive_hash: bytes, previous: bytes, link: bytes) -> bytes:
    """Return ``archive_hash`` of a row, from that of the row before, ``previous_hash`` and ``hash``."""
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
    """Return whether a row of the archive (``seq`` to ``previous_hash``) is the same as it was in the log."""
    return _is_hash(row.previous_hash) and row.hash == link(row.previous_hash, row[:_WIDTH])


def verify(conn: Connection) -> Verification:
    """
    Verify the whole log, in little memory.

    Detects rows that were changed, removed, inserted or moved, and a tail that was cut off or added.
    """
    head = _head(conn)
    begins = head.base_length if head is not None else 0
    digest = (head.base_hash if head is not None else None) or BEGINNING
    at = begins

    def bad(reason: str, seq: int) -> Verification:
        return Verification(
            ok=False, rows=at - begins, first_bad=seq, reason=reason, head=digest.hex(), let_go=begins
        )

    if not _is_hash(digest):
        digest = BEGINNING
        return bad("the record of where the log begins was changed", begins + 1)
    pages = _pages(conn, select(*(EVENTS.c[name] for name in _HASH_COLUMNS), EVENTS.c.hash))
    while True:
        seq = at + 1
        try:
            row = next(pages, None)
        except DBAPIError as error:
            return bad(f"row {seq} cannot be read: {error.orig}", seq)
        if row is None:
            break
        if row.seq != seq:
            what = "missing" if row.seq > seq else "added"
            return bad(f"row {min(row.seq, seq)} is {what}", min(row.seq, seq))
        own_hash = link(digest, row[:_WIDTH])
        if own_hash is None or own_hash != row.hash:
            return bad(f"row {seq} does not match its hash", seq)
        digest, at = own_hash, seq
    if head is None:
        return bad("the record of the log's length is missing", at + 1)
    if head.length > at:
        return bad(f"rows are missing at the end: {head.length - at:,}", at + 1)
    if head.length < at:
        return bad(f"rows were added after the last that was written: {at - head.length:,}", head.length + 1)
    if head.hash != digest:
        return bad(f"row {at} does not end in the hash that was recorded", max(at, 1))
    return Verification(ok=True, rows=at - begins, head=digest.hex(), let_go=begins)


def verify_archive(conn: Connection) -> Verification:
    """
    Verify the whole audit archive, in little memory.

    Detects rows that were changed, removed, inserted or moved, and a tail that was cut off or added.
    """
    head = _head(conn)
    after = head.archive_base_seq if head is not None else 0
    digest = (head.archive_base_hash if head is not None else None) or BEGINNING
    at, rows = after, 0

    def bad(reason: str, seq: int) -> Verification:
        return Verification(
            ok=False, rows=rows, first_bad=seq, reason=reason, head=digest.hex(), let_go=after
        )

    if head is None:
        return bad("the record of the archive's end is missing", 1)
    if not is_archive_base_whole(head):
        digest = BEGINNING
        return bad(ARCHIVE_BASE_CHANGED, after + 1)
    names = (*_HASH_COLUMNS, "hash", "previous_hash", "archive_hash")
    pages = _pages(conn, select(*(AUDIT_ARCHIVE.c[name] for name in names)))
    while True:
        try:
            row = next(pages, None)
        except DBAPIError as error:
            return bad(f"the row after {at} cannot be read: {error.orig}", at + 1)
        if row is None:
            break
        if not after < row.seq <= head.base_length:
            return bad(f"row {row.seq} is added", row.seq)
        if not is_whole(row):
            return bad(f"row {row.seq} does not match its hash", row.seq)
        own_hash = archive_link(digest, row.previous_hash, row.hash)
        if own_hash != row.archive_hash:
            return bad(
                f"row {row.seq} does not follow row {at}: it was changed, or one between them is missing",
                row.seq,
            )
        digest, at, rows = own_hash, row.seq, rows + 1
    if (head.archive_hash or BEGINNING) != digest:
        return bad(f"the last rows, after row {at}, are missing or changed", at + 1)
    return Verification(ok=True, rows=rows, head=digest.hex(), let_go=after)


def _head(conn: Connection) -> Row[Any] | None:
    heads = conn.execute(select(EVENT_LOG_HEAD)).all()
    return heads[0] if len(heads) == 1 else None


def _is_hash(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == len(BEGINNING)


def _pages(conn: Connection, query: Select[Any]) -> Iterator[Any]:
    """Yield every row. An unreadable page is read row by row, up to the unreadable row."""
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
