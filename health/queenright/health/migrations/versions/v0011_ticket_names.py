"""Rename `worker_node_id` and `worker_graph_id` of tickets: `node_id`, `graph_id`."""

from __future__ import annotations

from typing import Final

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_KEYS: Final = (("worker_node_id", "node_id"), ("worker_graph_id", "graph_id"))


def upgrade() -> None:
    """Rename the keys in the JSON of each ticket. A quote inside a text is escaped, so no text changes."""
    body = "body"
    for old, new in _KEYS:
        body = f"replace({body}, '\"{old}\":', '\"{new}\":')"
    op.execute(f"UPDATE tickets SET body = {body}")
