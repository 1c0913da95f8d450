"""
Requests that are to be done once: each is claimed by its key before it is done, and answered after.

Of a claim without an answer, whose process is gone, nobody knows whether it was done; only whoever asked
can look. Every function takes a connection inside a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, update

from queenright.health.tables import KEYED_REQUESTS as REQUESTS

KEPT_SECONDS: Final = 86_400.0
"""How long a key is known from when it was first used."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request was answered."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """A key that was used before, and by what."""

    request: str
    """A hash of what was asked."""
    answer: Answer | None
    """None while it is being done, or if it was cut off."""


def claim(conn: Connection, caller: str, key: str, request: str, now: float) -> Claim | None:
    """
    Take a key for a request; return None, or by what it is taken already.

    Args:
        conn: A connection in a transaction that may write.
        caller: Who asks; each has keys of its own.
        key: What the caller calls this request.
        request: A hash of what is asked.
        now: Seconds since the epoch; what was taken longer than ``KEPT_SECONDS`` before is free again.
    """
    row = conn.execute(select(REQUESTS).where(_is(caller, key))).one_or_none()
    if row is not None and row.began_at >= now - KEPT_SECONDS:
        return Claim(row.request, _answer(row.status, row.headers or (), row.body))
    if row is not None:
        conn.execute(delete(REQUESTS).where(_is(caller, key)))
    conn.execute(insert(REQUESTS).values(caller=caller, key=key, request=request, began_at=now))
    return None


def keep(conn: Connection, caller: str, key: str, answer: Answer) -> None:
    """Note what the request was answered that has this key."""
    headers = [list(pair) for pair in answer.headers]
    conn.execute(
        update(REQUESTS)
        .where(_is(caller, key))
        .values(status=answer.status, headers=headers, body=answer.body)
    )


def release(conn: Connection, caller: str, key: str) -> None:
    """Let a key go: what it was for was not done, and may be asked again."""
    conn.execute(delete(REQUESTS).where(_is(caller, key)))


def _is(caller: str, key: str) -> ColumnElement[bool]:
    return and_(REQUESTS.c.caller == caller, REQUESTS.c.key == key)


def _answer(status: int | None, headers: Sequence[Sequence[str]], body: bytes | None) -> Answer | None:
    if status is None:
        return None
    return Answer(status, tuple((name, value) for name, value in headers), bytes(body or b""))
