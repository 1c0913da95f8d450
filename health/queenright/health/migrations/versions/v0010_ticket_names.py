"""Rename `worker_agent_id` and `worker_session_id` of tickets: `agent_id`, `session_id`."""

from __future__ import annotations

from typing import Final

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_KEYS: Final = (("worker_agent_id", "agent_id"), ("worker_session_id", "session_id"))


def upgrade() -> None:
    """Rename the keys in the JSON of each ticket. A quote inside a text is escaped, so no text changes."""
    body = "body"
    for old, new in _KEYS:
        body = f"replace({body}, '\"{old}\":', '\"{new}\":')"
    op.execute(f"UPDATE tickets SET body = {body}")
