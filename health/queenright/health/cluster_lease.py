"""
The lease on a PostgreSQL database: which process of a cluster owns it.

The owner is the process that holds the store's advisory lock (``postgres``). It renews its lease every
`RENEWAL_SECONDS`. A lease that is not renewed for `LEASE_SECONDS` has expired: another process then ends the
owner's session on the server. That releases the lock, and a process that was only paused can no longer write:
its connection is closed, and a new one waits for the lock. All times are those of the database's clock.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.errors import UndefinedTable
from psycopg.rows import dict_row
from sqlalchemy import URL

from queenright.health.postgres import DATABASE_TIME, WRITER_LOCK
from queenright.instrumentation.http_url import http_url

RENEWAL_SECONDS: Final = 2.0
LEASE_SECONDS: Final = 6.0
_FORGET_SECONDS: Final = 600.0
"""A member that was not seen for so long is removed."""
_STATEMENT_TIMEOUT_SECONDS: Final = 3
_CLAIM_MINUTES: Final = 30
"""How long a process may take from the lock to its first lease, such as for an update of the schema."""

_LOCKS: Final = (
    f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = {WRITER_LOCK >> 32}"
    f" AND objid = {WRITER_LOCK & 0xFFFFFFFF} AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_EXPIRED: Final = f"SELECT 1 FROM store_writer WHERE renewed_at < {DATABASE_TIME} - {LEASE_SECONDS}"

LeaseError = psycopg.Error
"""Raised while the database cannot be reached."""


class LeaseLostError(Exception):
    """Raised when another process owns the database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A process of the cluster, and where the others reach it."""

    member_id: str
    host: str
    api_port: int
    otlp_port: int
    version: str

    @property
    def api_url(self) -> str:
        """The URL of its API."""
        return http_url(self.host, self.api_port)

    @property
    def otlp_url(self) -> str:
        """The URL of its telemetry port."""
        return http_url(self.host, self.otlp_port)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenMember:
    """A member, and when it was last seen."""

    member: Member
    uptime_seconds: float
    """Seconds from its start until it was last seen."""
    unseen_seconds: float
    is_owner: bool
    can_publish: bool
    """Whether it reached NATS when it was last seen."""

    @property
    def can_watch(self) -> bool:
        """Whether it could be the owner: it is alive, and telemetry can reach it."""
        return self.can_publish and self.unseen_seconds < LEASE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The cluster as a member sees it."""

    members: tuple[SeenMember, ...]
    is_vacant: bool
    """Whether no process holds the lock, so that this one may try."""
    has_expired: bool
    """Whether the owner has not renewed its lease in time."""

    @property
    def owner(self) -> Member | None:
        """The owner; None if there is none, or it is no member of a cluster."""
        return next((seen.member for seen in self.members if seen.is_owner), None)


class ClusterLease:
    """
    One member's connection to the lease. Belongs to one event loop.

    Args:
        address: The database, on PostgreSQL.
        member: This process.
    """

    def __init__(self, address: URL, member: Member) -> None:
        self._conninfo = address.set(drivername="postgresql").render_as_string(hide_password=False)
        self.member = member
        self._conn: psycopg.AsyncConnection[dict[str, Any]] | None = None
        self._lock = asyncio.Lock()
        self._valid_until = float("-inf")

    @property
    def is_valid(self) -> bool:
        """Whether this process is certain to own the database: its last renewal is recent enough."""
        return time.monotonic() < self._valid_until

    async def look(self, *, can_publish: bool) -> View:
        """
        Note that this member is alive, and return the cluster.

        Args:
            can_publish: Whether this member reaches NATS.

        Raises:
            LeaseError: The database cannot be reached.
        """
        try:
            return await self._look(can_publish)
        except UndefinedTable:
            # A new database, or one of an earlier version: the first owner migrates it.
            return View(members=(), is_vacant=True, has_expired=False)

    async def _look(self, can_publish: bool) -> View:
        member = self.member
        await self._execute(
            "INSERT INTO members"
            " (member_id, host, api_port, otlp_port, version, can_publish, started_at, seen_at)"
            f" VALUES (%s, %s, %s, %s, %s, %s, {DATABASE_TIME}, {DATABASE_TIME})"
            f" ON CONFLICT (member_id) DO UPDATE SET seen_at = {DATABASE_TIME},"
            " can_publish = excluded.can_publish",
            (member.member_id, member.host, member.api_port, member.otlp_port, member.version, can_publish),
        )
        rows = await self._execute(
            f"SELECT m.*, {DATABASE_TIME} - m.seen_at AS unseen,"
            f" w.member_id IS NOT NULL AND EXISTS ({_LOCKS}) AS is_owner"
            " FROM members m LEFT JOIN store_writer w ON w.member_id = m.member_id ORDER BY m.started_at, 1"
        )
        state = await self._execute(
            f"SELECT NOT EXISTS ({_LOCKS}) AS is_vacant, EXISTS ({_EXPIRED}) AS has_expired"
        )
        return View(members=tuple(_member_of_row(row) for row in rows), **state[0])

    async def evict_expired_owner(self) -> bool:
        """
        End the session of an owner whose lease has expired, which releases the lock.

        A session that began after the last renewal is not the former owner's: it is about to take over, and
        may be updating the schema.

        Returns:
            Whether a session was ended.

        Raises:
            LeaseError: The database cannot be reached, or its user may not end sessions of the owner's user.
        """
        rows = await self._execute(
            f"SELECT pg_terminate_backend(l.pid) FROM ({_LOCKS}) l JOIN pg_stat_activity a ON a.pid = l.pid"
            f" JOIN store_writer w ON w.renewed_at < {DATABASE_TIME} - {LEASE_SECONDS}"
            " WHERE a.backend_start < to_timestamp(w.renewed_at)"
            f" OR a.backend_start < clock_timestamp() - interval '{_CLAIM_MINUTES} minutes'"
        )
        return bool(rows)

    async def renew(self, token: str) -> None:
        """
        Renew the lease of this process.

        Args:
            token: The store's ``writer_token``.

        Raises:
            LeaseLostError: Another process owns the database.
            LeaseError: The database cannot be reached.
        """
        began = time.monotonic()
        rows = await self._execute(
            f"UPDATE store_writer SET renewed_at = {DATABASE_TIME} WHERE token = %s RETURNING 1", (token,)
        )
        if not rows:
            self._valid_until = float("-inf")
            raise LeaseLostError
        self._valid_until = began + LEASE_SECONDS

    async def leave(self) -> None:
        """Remove this member, and those that are gone for long; then close the connection."""
        self._valid_until = float("-inf")
        try:
            await self._execute(
                f"DELETE FROM members WHERE member_id = %s OR seen_at < {DATABASE_TIME} - {_FORGET_SECONDS}",
                (self.member.member_id,),
            )
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connection."""
        if self._conn is not None:
            conn, self._conn = self._conn, None
            await conn.close()

    async def _execute(self, query: str, values: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
        async with self._lock:
            try:
                async with asyncio.timeout(2 * _STATEMENT_TIMEOUT_SECONDS):
                    if self._conn is None:
                        self._conn = await psycopg.AsyncConnection.connect(
                            self._conninfo,
                            autocommit=True,
                            row_factory=dict_row,
                            connect_timeout=_STATEMENT_TIMEOUT_SECONDS,
                            application_name="queenright cluster",
                        )
                        # Not as an option of the connection: poolers refuse those.
                        await self._conn.execute(f"SET statement_timeout = '{_STATEMENT_TIMEOUT_SECONDS}s'")
                    cursor = await self._conn.execute(query, values)
                    return await cursor.fetchall() if cursor.description else []
            except TimeoutError:
                await self.close()
                raise psycopg.OperationalError("the database does not answer") from None
            except psycopg.Error:
                await self.close()
                raise


def _member_of_row(row: dict[str, Any]) -> SeenMember:
    return SeenMember(
        member=Member(**{name: row[name] for name in Member.__slots__}),
        uptime_seconds=float(row["seen_at"] - row["started_at"]),
        unseen_seconds=float(row["unseen"]),
        is_owner=row["is_owner"],
        can_publish=row["can_publish"],
    )
