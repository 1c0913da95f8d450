"""Callbacks that have been acted on: what comes a second time gets the same answer, and does nothing."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, insert, select

from queenright.health.tables import CALLBACKS


def answered(conn: Connection, callback_id: str) -> dict[str, Any] | None:
    """Return what was answered to a callback; None if it is new."""
    found: dict[str, Any] | None = conn.execute(
        select(CALLBACKS.c.answer).where(CALLBACKS.c.callback_id == callback_id)
    ).scalar()
    return found


def remember(conn: Connection, callback_id: str, answer: dict[str, Any], now: float) -> None:
    """Keep what was answered to a callback, unless that is known; ``now`` in seconds since the epoch."""
    if answered(conn, callback_id) is None:
        conn.execute(insert(CALLBACKS).values(callback_id=callback_id, received_at=now, answer=answer))
