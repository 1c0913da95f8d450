"""
The oldest schema that can be migrated.

A new database gets the newest schema at once (``health.store.schema``); migrations are for older ones.
"""

from __future__ import annotations

revision = "0012"
down_revision = None
branch_labels = None
depends_on = None
oldest_compatible = "0012"


def upgrade() -> None:
    """Do nothing: the database has this schema."""
