"""Deduplicate callbacks: a repeated callback gets the stored answer and has no effect."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, insert, select

from queenright.health.tables import CALLBACKS


def find_answer(conn: Connection, callback_id: str) -> dict[str, Any] | None:
    """Return the stored answer to a callback; None if it is new."""
    answer: dict[str, Any] | None = conn.execute(
        select(CALLBACKS.c.answer).where(CALLBACKS.c.callback_id == callback_id)
    ).scalar()
    return answer


def save_answer(conn: Connection, callback_id: str, answer: dict[str, Any], now: float) -> None:
    """Store the answer to a callback unless there is one; ``now`` in seconds since the epoch."""
    if find_answer(conn, callback_id) is None:
        conn.execute(insert(CALLBACKS).values(callback_id=callback_id, received_at=now, answer=answer))
