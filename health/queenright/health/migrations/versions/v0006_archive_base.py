"""Where the audit archive begins, so that a change of it is found."""

from __future__ import annotations

import hashlib

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the hash of where the archive begins, as it is recorded now."""
    op.add_column("event_log_head", sa.Column("archive_base_check", sa.LargeBinary))
    head = sa.table(
        "event_log_head",
        sa.column("archive_base_seq", sa.BigInteger),
        sa.column("archive_base_hash", sa.LargeBinary),
        sa.column("archive_base_check", sa.LargeBinary),
    )
    bind = op.get_bind()
    for seq, base in bind.execute(sa.select(head.c.archive_base_seq, head.c.archive_base_hash)).all():
        if seq and base is not None:
            check = hashlib.sha256(bytes(base) + b"%d" % seq).digest()
            bind.execute(head.update().values(archive_base_check=check))
