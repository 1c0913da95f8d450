"""
The oldest schema that can be migrated.

A new database gets the newest schema directly (``health.store.schema``). Migrations update older databases.
"""

from __future__ import annotations

revision = "0012"
down_revision = None
branch_labels = None
depends_on = None
oldest_compatible = "0012"


def upgrade() -> None:
    """Do nothing, because the database already has this schema."""
