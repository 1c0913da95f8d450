"""
Values that the partitions of a cluster share: named JSON values in the default schema of the database.

A process reads the changes every second. An update is one transaction that locks the value's
row, so that no two processes decide on the same value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from psycopg import AsyncConnection
from psycopg.errors import UndefinedTable

from queenright.health.cluster.cluster_lease import ClusterLease
from queenright.health.cluster.fleet import Change
from queenright.health.store.postgres import DATABASE_TIME, writer_table

_OVERLAP_SECONDS: Final = 15.0
"""The overlap of successive reads, because a late commit has an earlier timestamp."""
_RETENTION_SECONDS: Final = 2 * 86_400

_TABLE_EXISTS: Final = "SELECT to_regclass('shared_values') IS NOT NULL AS table_exists"
_WRITE: Final = (
    f"INSERT INTO shared_values (name, value, changed_at) SELECT name, value, {DATABASE_TIME}"
    " FROM jsonb_each_text(%(values)s::jsonb) AS given (name, value) WHERE {condition}"
    " ON CONFLICT (name) DO UPDATE SET value = excluded.value, changed_at = excluded.changed_at"
)


class SharedValues:
    """
    The shared values, on the connection of a process. It belongs to one event loop.

    Every method raises `LeaseError` if the database cannot be reached.
    """

    def __init__(self, lease: ClusterLease) -> None:
        self._lease = lease
        self._read_at: float | None = None
        self.is_available = False
        """Whether the database has the table, which the first owner creates."""

    async def read(self) -> dict[str, Any]:
        """Return the values that may have changed since the last read. The first read returns all."""
        async with self._lease.session() as conn:
            if not self.is_available:
                row = await (await conn.execute(_TABLE_EXISTS)).fetchone()
                self.is_available = row is not None and row["table_exists"]
                if not self.is_available:
                    return {}
            try:
                cursor = await conn.execute(
                    f"SELECT name, value, {DATABASE_TIME} AS now FROM shared_values"
                    " WHERE changed_at >= %(since)s",
                    {"since": 0.0 if self._read_at is None else self._read_at - _OVERLAP_SECONDS},
                )
            except UndefinedTable:
                # The database was replaced.
                self.is_available, self._read_at = False, None
                raise
            rows = await cursor.fetchall()
            if rows:
                self._read_at = float(rows[0]["now"])
        return {row["name"]: json.loads(row["value"]) for row in rows}

    async def update(self, name: str, change: Change) -> Any:
        """
        Change a value in its own transaction, and return the new one.

        Args:
            name: The name.
            change: Returns the new value. If it returns its argument, nothing is written.
        """
        async with self._lease.session() as conn, conn.transaction():
            return await self.update_in(conn, name, change)

    async def update_in(self, conn: AsyncConnection[dict[str, Any]], name: str, change: Change) -> Any:
        """Update a value like ``update``, but in the caller's transaction, and return the new one."""
        await conn.execute(
            "INSERT INTO shared_values (name, value, changed_at) VALUES (%(name)s, 'null', 0)"
            " ON CONFLICT DO NOTHING",
            {"name": name},
        )
        cursor = await conn.execute(
            "SELECT value FROM shared_values WHERE name = %(name)s FOR UPDATE", {"name": name}
        )
        row = await cursor.fetchone()
        before = None if row is None else json.loads(row["value"])
        after = change(before)
        if after is not before:
            await conn.execute(
                f"UPDATE shared_values SET value = %(value)s, changed_at = {DATABASE_TIME}"
                " WHERE name = %(name)s",
                {"name": name, "value": json.dumps(after)},
            )
        return after

    async def write(self, values: Mapping[str, Any], *, partition: int, token: str) -> None:
        """
        Write the values of a partition, unless another process owns it now.

        Args:
            values: The values by name. No other partition writes these names.
            partition: The partition.
            token: The ``writer_token`` of its store.
        """
        # Lock the row, so that a new owner, which replaces it, waits until these values are written.
        condition = f"EXISTS (SELECT 1 FROM {writer_table(partition)} WHERE token = %(token)s FOR SHARE)"
        texts = {name: json.dumps(value) for name, value in values.items()}
        async with self._lease.session() as conn:
            await conn.execute(
                _WRITE.format(condition=condition), {"values": json.dumps(texts), "token": token}
            )

    async def remove_old(self, prefix: str) -> None:
        """Remove the values whose names have this prefix and that have not changed for two days."""
        async with self._lease.session() as conn:
            await conn.execute(
                "DELETE FROM shared_values WHERE starts_with(name, %(prefix)s)"
                f" AND changed_at < {DATABASE_TIME} - {_RETENTION_SECONDS}",
                {"prefix": prefix},
            )
