"""
Leases in a PostgreSQL database: they decide which process of a cluster owns a partition.

The owner of a partition is the process that holds its store's advisory lock (``postgres``). It renews its
lease every `RENEWAL_SECONDS`. A lease that is not renewed for `LEASE_SECONDS` has expired: another process
then ends the owner's session on the server. That releases the lock, and a process that was only paused can no
longer write: its connection is closed, and a new one waits for the lock. All times are those of the
database's clock.

Each process also holds a shared advisory lock, its presence lock, so that the others notice immediately when
it ends.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any, Final

import psycopg
from psycopg.errors import UndefinedColumn, UndefinedTable
from psycopg.rows import dict_row
from sqlalchemy import URL

from queenright.health.cluster.shared_secrets import make_secret
from queenright.health.store.postgres import (
    DATABASE_TIME,
    list_schemas_query,
    partition_lock,
    writer_table,
)
from queenright.instrumentation.http_url import http_url

RENEWAL_SECONDS: Final = 2.0
LEASE_SECONDS: Final = 6.0
_MEMBER_RETENTION_SECONDS: Final = 600.0
"""A member that has not refreshed for this long is forgotten."""
_STATEMENT_TIMEOUT_SECONDS: Final = 3
_MAX_QUERY_SECONDS: Final = 1.0
"""The clocks are compared only if the database answered in less time."""
_CLAIM_MINUTES: Final = 30
"""The time between the lock and the first lease, in which a process may update the schema."""

_PRESENCE_CLASS: Final = 0x71756565  # "quee"
"""The first half of the key of each process's presence lock."""
_LOCKS_QUERY: Final = (
    "SELECT classid::bigint, objid::bigint, objsubid, pid FROM pg_locks"
    " WHERE locktype = 'advisory' AND granted"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)

LeaseError = psycopg.Error
"""Raised while the database cannot be reached."""


class LeaseLostError(Exception):
    """Raised when another process owns the partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A process of the cluster, and its addresses."""

    member_id: str
    host: str
    api_port: int
    otlp_port: int
    version: str
    partitions: int
    """The number of partitions in its settings."""

    @property
    def api_url(self) -> str:
        """The URL of its API."""
        return http_url(self.host, self.api_port)

    @property
    def otlp_url(self) -> str:
        """The URL of its telemetry port."""
        return http_url(self.host, self.otlp_port)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """
    The data that a member shares with the others at each refresh.

    Like `Member`, it is stored as JSON that older and newer versions read. A new field needs a default, and
    no field may be removed or change its meaning.
    """

    can_publish: bool = True
    """Whether the member reaches NATS, and is not about to stop."""
    is_stopping: bool = False
    is_counted: bool = True
    """Whether its number of partitions is that of the cluster."""
    serving: frozenset[int] = frozenset()
    """The partitions whose logs it has read and whose workers it monitors."""
    has_failed: bool = False
    """Whether it recently failed to run a partition."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """A hash of each block of the settings that should be the same for all members."""
    clock_offset: float = 0.0
    """The seconds by which the member's clock is ahead of the database's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenMember:
    """A member, and the time since its last refresh."""

    member: Member
    state: MemberState
    uptime_seconds: float
    """Seconds from its start until it was last seen."""
    unseen_seconds: float
    is_connected: bool
    """Whether it is connected to the database."""

    @property
    def is_alive(self) -> bool:
        """Whether the member is probably running."""
        return self.is_connected and self.unseen_seconds < LEASE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The owner of a partition."""

    owner_id: str | None = None
    """The current owner, or the last one if it has not released the partition."""
    is_vacant: bool = True
    """Whether no process holds the partition's lock, so that any process may claim it."""
    has_expired: bool = False
    """Whether the owner has not renewed its lease in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The state of the cluster, as one member knows it."""

    members: tuple[SeenMember, ...]
    """Oldest first."""
    partitions: tuple[Ownership, ...]
    stored_partitions: int = 0
    """The number of partitions in the database; 0 before it has tables."""
    expires_in: float = math.inf
    """Seconds until the first of the valid leases expires, or a member stops counting as alive."""

    @property
    def alive(self) -> list[SeenMember]:
        """The members that are probably running, oldest first."""
        return [member for member in self.members if member.is_alive]

    def find_owner(self, partition: int) -> Member | None:
        """Return the owner of a partition, or None if it is vacant or the owner is not a member."""
        owner = self.partitions[partition]
        if owner.is_vacant or owner.owner_id is None:
            return None
        all_members = (seen_member.member for seen_member in self.members)
        return next((member for member in all_members if member.member_id == owner.owner_id), None)

    def is_served(self, partition: int) -> bool:
        """Return whether the owner of a partition monitors the partition's workers."""
        owner_id = self.partitions[partition].owner_id
        return any(
            member.member.member_id == owner_id and partition in member.state.serving for member in self.alive
        )


class ClusterLease:
    """
    One member's connection to the leases. It belongs to one event loop.

    Args:
        address: The database, on PostgreSQL.
        member: This process.

    Attributes:
        clock_offset: The seconds by which this machine's clock is ahead of the database's clock.
    """

    def __init__(self, address: URL, member: Member) -> None:
        self._conninfo = address.set(drivername="postgresql").render_as_string(hide_password=False)
        self.member = member
        self._conn: psycopg.AsyncConnection[dict[str, Any]] | None = None
        self._lock = asyncio.Lock()
        self.clock_offset = 0.0
        self._valid_until: dict[int, float] = {}
        self._schemas: set[int] = set()
        """The partitions that have tables."""
        self._stored_count = 0

    def is_valid(self, partition: int) -> bool:
        """
        Return whether this process certainly owns a partition: its last renewal is recent enough.
        """
        return time.monotonic() < self._valid_until.get(partition, float("-inf"))

    async def read_cluster(self, state: MemberState | None = None) -> View:
        """
        Record that this member is running, and return the state of the cluster.

        Args:
            state: The state of this member that the others should read.

        Raises:
            LeaseError: The database cannot be reached.
        """
        rows = await self._read_members(state or MemberState())
        writers = await self._read_writers()
        lock_rows = await self._execute(_LOCKS_QUERY)
        locks = {(lock["classid"], lock["objid"], lock["objsubid"]) for lock in lock_rows}
        members = [
            _parse_member(row, is_connected=(_PRESENCE_CLASS, _presence_key(row["member_id"]), 2) in locks)
            for row in rows
        ]
        limits = [writer["expires_in"] for writer in writers.values()]
        limits += [LEASE_SECONDS - member.unseen_seconds for member in members if member.is_connected]
        return View(
            members=tuple(
                member for i, member in enumerate(members) if not _is_replaced(member, members[i + 1 :])
            ),
            partitions=tuple(
                Ownership(
                    owner_id=writer["member_id"] if (writer := writers.get(partition)) else None,
                    is_vacant=(*divmod(partition_lock(partition), 1 << 32), 1) not in locks,
                    has_expired=writer is not None and writer["expires_in"] < 0,
                )
                for partition in range(self.member.partitions)
            ),
            stored_partitions=self._stored_count,
            expires_in=min((seconds for seconds in limits if seconds >= 0), default=math.inf),
        )

    async def read_secret(self, name: str) -> bytes | None:
        """
        Return the secret with this name, or None before the tables exist. Create it if it is missing.

        Raises:
            LeaseError: The database cannot be reached.
        """
        # A failed statement would close the connection and release this member's lock.
        [row] = await self._execute("SELECT to_regclass('secrets') IS NOT NULL AS exists")
        if not row["exists"]:
            return None
        [row] = await self._execute(
            "INSERT INTO secrets (name, value) VALUES (%(name)s, %(value)s)"
            " ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING value",
            {"name": name, "value": make_secret()},
        )
        return bytes(row["value"])

    async def _read_members(self, state: MemberState) -> list[dict[str, Any]]:
        """Record that this member is alive, and return the rows of all members, oldest first."""
        values = asdict(self.member) | asdict(state) | {"serving": sorted(state.serving)}
        try:
            await self._execute(
                "INSERT INTO members (member_id, state, started_at, seen_at)"
                f" VALUES (%(member_id)s, %(state)s, {DATABASE_TIME}, {DATABASE_TIME})"
                " ON CONFLICT (member_id) DO UPDATE SET state = excluded.state, seen_at = excluded.seen_at",
                {"member_id": self.member.member_id, "state": json.dumps(values)},
            )
            async with self.session() as conn:
                began = time.time()
                cursor = await conn.execute(
                    f"SELECT *, {DATABASE_TIME} - seen_at AS unseen, {DATABASE_TIME} AS now FROM members"
                    f" WHERE seen_at > {DATABASE_TIME} - {_MEMBER_RETENTION_SECONDS}"
                    " ORDER BY started_at, member_id"
                )
                took = time.time() - began
                rows = await cursor.fetchall()
        except (UndefinedColumn, UndefinedTable):
            # A new database, or one of an earlier version: the first owner migrates it.
            return []
        if rows and took < _MAX_QUERY_SECONDS:
            self.clock_offset = began + took / 2 - float(rows[0]["now"])
        return rows

    async def _read_writers(self) -> dict[int, dict[str, Any]]:
        """Return the row of each partition's last writer, by partition."""
        count = self.member.partitions
        if len(self._schemas) < count:
            schemas = await self._execute(list_schemas_query("store_writer"))
            self._stored_count = max((row["partition"] + 1 for row in schemas), default=0)
            self._schemas = {row["partition"] for row in schemas if row["partition"] < count}
        if not self._schemas:
            return {}
        try:
            rows = await self._execute(
                " UNION ALL ".join(
                    f"SELECT {partition} AS partition, member_id,"
                    f" coalesce(renewed_at - {DATABASE_TIME} + {LEASE_SECONDS}, 'infinity') AS expires_in"
                    f" FROM {writer_table(partition)}"
                    for partition in sorted(self._schemas)
                )
            )
        except UndefinedTable:
            # The database was replaced.
            self._schemas.clear()
            return {}
        return {row["partition"]: row for row in rows}

    async def evict_expired_owner(self, partition: int) -> bool:
        """
        End the session of an owner whose lease has expired, which releases the lock.

        A session that began after the last renewal is not the former owner's: it is about to take over, and
        may be updating the schema.

        Returns:
            Whether a session was ended.

        Raises:
            LeaseError: The database cannot be reached, or its user may not end sessions of the owner's user.
        """
        high, low = divmod(partition_lock(partition), 1 << 32)
        rows = await self._execute(
            f"SELECT pg_terminate_backend(l.pid) FROM ({_LOCKS_QUERY}) l"
            " JOIN pg_stat_activity a ON a.pid = l.pid"
            f" JOIN {writer_table(partition)} w ON w.renewed_at < {DATABASE_TIME} - {LEASE_SECONDS}"
            f" WHERE (l.classid, l.objid, l.objsubid) = ({high}, {low}, 1)"
            " AND (a.backend_start < to_timestamp(w.renewed_at)"
            f" OR a.backend_start < clock_timestamp() - interval '{_CLAIM_MINUTES} minutes')"
        )
        return bool(rows)

    async def renew(self, partition: int, token: str) -> None:
        """
        Renew the lease of this process on a partition.

        Args:
            partition: The partition.
            token: The store's ``writer_token``.

        Raises:
            LeaseLostError: Another process owns the partition.
            LeaseError: The database cannot be reached.
        """
        began = time.monotonic()
        rows = await self._execute(
            f"UPDATE {writer_table(partition)} SET renewed_at = {DATABASE_TIME}"
            " WHERE token = %(token)s RETURNING 1",
            {"token": token},
        )
        if not rows:
            self._valid_until.pop(partition, None)
            raise LeaseLostError
        self._valid_until[partition] = began + LEASE_SECONDS

    async def release(self, partition: int, token: str) -> None:
        """
        Release a partition after its store has been closed.

        Raises:
            LeaseError: The database cannot be reached.
        """
        self._valid_until.pop(partition, None)
        await self._execute(
            f"UPDATE {writer_table(partition)} SET member_id = NULL WHERE token = %(token)s", {"token": token}
        )

    async def leave(self) -> None:
        """Remove this member and members that ended long ago, then close the connection."""
        self._valid_until.clear()
        try:
            await self._execute(
                "DELETE FROM members WHERE member_id = %(member_id)s"
                f" OR seen_at < {DATABASE_TIME} - {_MEMBER_RETENTION_SECONDS}",
                {"member_id": self.member.member_id},
            )
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connection."""
        if self._conn is not None:
            conn, self._conn = self._conn, None
            await conn.close()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[psycopg.AsyncConnection[dict[str, Any]]]:
        """
        Lend the connection, with autocommit, for a few short statements. An error closes it.

        Raises:
            LeaseError: The database cannot be reached.
        """
        async with self._lock:
            try:
                async with asyncio.timeout(2 * _STATEMENT_TIMEOUT_SECONDS):
                    yield self._conn or await self._connect()
            except TimeoutError:
                await self.close()
                raise psycopg.OperationalError("the database does not answer") from None
            except psycopg.Error:
                await self.close()
                raise

    async def _connect(self) -> psycopg.AsyncConnection[dict[str, Any]]:
        conn = await psycopg.AsyncConnection.connect(
            self._conninfo,
            autocommit=True,
            row_factory=dict_row,
            connect_timeout=_STATEMENT_TIMEOUT_SECONDS,
            application_name="queenright cluster",
        )
        try:
            # Not a connection option, because poolers refuse those.
            await conn.execute(f"SET statement_timeout = '{_STATEMENT_TIMEOUT_SECONDS}s'")
            # A shared lock, because the server may not have noticed yet that the former connection is lost.
            key = _presence_key(self.member.member_id)
            await conn.execute(f"SELECT pg_advisory_lock_shared({_PRESENCE_CLASS}, {key})")
        except BaseException:
            await conn.close()
            raise
        self._conn = conn
        return conn

    async def _execute(self, query: str, values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        async with self.session() as conn:
            cursor = await conn.execute(query, values)
            return await cursor.fetchall() if cursor.description else []


def _parse_member(row: Mapping[str, Any], *, is_connected: bool) -> SeenMember:
    values = json.loads(row["state"])
    state = {name: values[name] for name in MemberState.__slots__ if name in values}
    return SeenMember(
        member=Member(**{name: values[name] for name in Member.__slots__}),
        state=MemberState(**{**state, "serving": frozenset(state.get("serving", ()))}),
        uptime_seconds=float(row["seen_at"] - row["started_at"]),
        unseen_seconds=float(row["unseen"]),
        is_connected=is_connected,
    )


def _is_replaced(member: SeenMember, younger: Sequence[SeenMember]) -> bool:
    """Return whether a member has ended and a younger one has started at its address."""
    return not member.is_alive and any(member.member.api_url == other.member.api_url for other in younger)


def _presence_key(member_id: str) -> int:
    """
    Return the second half of the key of a member's presence lock: 31 bits, because PostgreSQL's integers are
    signed.
    """
    return int.from_bytes(blake2b(member_id.encode(), digest_size=4).digest()) >> 1
