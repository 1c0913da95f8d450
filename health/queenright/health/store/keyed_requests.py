"""
Requests with an idempotency key. The key is claimed before the request runs. Repeated requests get the stored
response.

If a claim has no response and its process has ended, the request may or may not have been carried out. Only
the caller can find out. Every function takes a connection in a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, update

from queenright.health.store.tables import KEYED_REQUESTS as REQUESTS

KEPT_SECONDS: Final = 86_400.0
"""The seconds for which a key is stored after its first use."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """The response to a request."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Claim:
    """An earlier use of a key."""

    request: str
    """A hash of the request."""
    answer: StoredResponse | None
    """The response; None while the request is in progress, or if it was interrupted."""


def claim(conn: Connection, caller: str, key: str, request: str, now: float) -> Claim | None:
    """
    Claim a key for a request. Return None, or the earlier claim if the key is in use.

    Args:
        caller: The caller. Each caller has its own keys.
        now: Seconds since the epoch. Claims older than ``KEPT_SECONDS`` have expired.
    """
    row = conn.execute(select(REQUESTS).where(_match_key(caller, key))).one_or_none()
    if row is not None and row.began_at >= now - KEPT_SECONDS:
        return Claim(row.request, _make_response(row.status, row.headers or (), row.body))
    if row is not None:
        conn.execute(delete(REQUESTS).where(_match_key(caller, key)))
    conn.execute(insert(REQUESTS).values(caller=caller, key=key, request=request, began_at=now))
    return None


def is_claimed(conn: Connection, caller: str, key: str, now: float) -> bool:
    """Return whether a request with this key has begun, and is neither released nor expired."""
    is_current = REQUESTS.c.began_at >= now - KEPT_SECONDS
    return conn.execute(select(REQUESTS.c.key).where(_match_key(caller, key), is_current)).first() is not None


def keep(conn: Connection, caller: str, key: str, answer: StoredResponse) -> None:
    """Store the response to the request with this key."""
    headers = [list(pair) for pair in answer.headers]
    conn.execute(
        update(REQUESTS)
        .where(_match_key(caller, key))
        .values(status=answer.status, headers=headers, body=answer.body)
    )


def release(conn: Connection, caller: str, key: str) -> None:
    """Release a key whose request was not carried out, so that the request can be repeated."""
    conn.execute(delete(REQUESTS).where(_match_key(caller, key)))


def _match_key(caller: str, key: str) -> ColumnElement[bool]:
    return and_(REQUESTS.c.caller == caller, REQUESTS.c.key == key)


def _make_response(
    status: int | None, headers: Sequence[Sequence[str]], body: bytes | None
) -> StoredResponse | None:
    if status is None:
        return None
    return StoredResponse(status, tuple((name, value) for name, value in headers), bytes(body or b""))
