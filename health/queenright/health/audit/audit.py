"""
Verify the event log, its archive, and the signatures of terminations.

``audit_page`` lists the events, which show who acted and when.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Row, Table, select
from sqlalchemy.exc import DBAPIError

from queenright.health.audit.audit_key import PublicKeys, build_signed_content
from queenright.health.store.event_chain import Verification, verify, verify_archive
from queenright.health.store.event_log import event_of
from queenright.health.store.tables import AUDIT_ARCHIVE, EVENTS
from queenright.runtime.events import AgentEvent, EventType

_MAX_FAULTS: Final = 20
"""The maximum number of faults to list. Further faults are only counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureFault:
    """A termination without a valid signature of this service."""

    seq: int
    agent_id: str
    reason: str

    def __str__(self) -> str:
        return f"row {self.seq}, the termination of {self.agent_id!r}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signatures:
    """The signatures of terminations."""

    terminations: int = 0
    """The number of terminations."""
    faults: tuple[SignatureFault, ...] = ()
    """The first terminations without a valid signature."""
    fault_count: int = 0
    """The number of terminations without a valid signature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """The result of an audit."""

    log: Verification
    archive: Verification
    signatures: Signatures

    @property
    def ok(self) -> bool:
        """Whether no row was changed, and every termination is signed."""
        return self.log.ok and self.archive.ok and not self.signatures.fault_count


def verify_audit(conn: Connection, keys: PublicKeys) -> AuditResult:
    """
    Verify both chains, and the signature of every termination in them.

    Args:
        conn: A connection with a transaction that sees one state of the database (a snapshot).
    """
    return AuditResult(
        log=verify(conn), archive=verify_archive(conn), signatures=_check_stored_signatures(conn, keys)
    )


def check_signatures(terminations: Iterable[tuple[int, AgentEvent | None]], keys: PublicKeys) -> Signatures:
    """Verify the signature of each termination. The event is None if its row cannot be read."""
    count, faults, fault_count = 0, [], 0
    for seq, event in terminations:
        count += 1
        if event is None:
            reason = "it cannot be read"
        else:
            data = event.data
            reason = keys.find_signature_problem(
                data.get("key_id"), data.get("signature"), build_signed_content(event)
            )
        if reason:
            fault_count += 1
            if fault_count <= _MAX_FAULTS:
                agent_id = event.agent_id if event is not None else "?"
                faults.append(SignatureFault(seq=seq, agent_id=agent_id, reason=reason))
    return Signatures(terminations=count, faults=tuple(faults), fault_count=fault_count)


def _check_stored_signatures(conn: Connection, keys: PublicKeys) -> Signatures:
    rows = (row for table in (AUDIT_ARCHIVE, EVENTS) for row in _select_terminations(conn, table))
    return check_signatures(((row.seq, _parse_event(row)) for row in rows), keys)


def _select_terminations(conn: Connection, table: Table) -> list[Row[Any]]:
    columns = [table.c[column.name] for column in EVENTS.columns]
    query = select(*columns).where(table.c.type == EventType.AGENT_TERMINATED.value).order_by(table.c.seq)
    try:
        return list(conn.execute(query))
    except DBAPIError:
        # An unreadable row breaks its chain, and the chain's verification reports it.
        return []


def _parse_event(row: Row[Any]) -> AgentEvent | None:
    try:
        event = event_of(row)
        if event is not None:
            build_signed_content(event)  # refuses values that the log never writes
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, TypeError, AttributeError):
        return None
    return event
