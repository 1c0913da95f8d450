"""Circuit breakers in the database: a row for each that is not closed, as JSON."""

from __future__ import annotations

import logging
from typing import Any

import orjson
from sqlalchemy import Connection, delete, insert, select

from queenright.health.breakers.breaker import BreakerState
from queenright.health.breakers.circuit import BreakerStatus
from queenright.health.tables import BREAKERS

_log = logging.getLogger(__name__)


def save(conn: Connection, status: BreakerStatus, at: float) -> None:
    """Store a breaker as of a time in seconds since the epoch; a closed one has no row."""
    conn.execute(delete(BREAKERS).where(BREAKERS.c.name == status.name))
    if status.state is BreakerState.CLOSED:
        return
    conn.execute(
        insert(BREAKERS).values(
            name=status.name, state=status.state.value, updated_at=at, body=orjson.dumps(status).decode()
        )
    )


def load(conn: Connection) -> list[BreakerStatus]:
    """Return the breakers that are not closed, the oldest change first; log rows that are unreadable."""
    found = []
    for row in conn.execute(select(BREAKERS).order_by(BREAKERS.c.updated_at, BREAKERS.c.name)):
        try:
            found.append(_read(orjson.loads(row.body)))
        except (ValueError, TypeError, KeyError) as error:
            _log.warning("circuit breaker %r cannot be read and starts closed: %r", row.name, error)
    return found


def _read(body: dict[str, Any]) -> BreakerStatus:
    return BreakerStatus(**{**body, "state": BreakerState(body["state"])})
