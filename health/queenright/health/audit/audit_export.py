"""
The audit trail as a JSON Lines file that can be verified without the database.

The first line has the format and the public keys. It is followed by one line for each event of the audit
trail, with its sequence number, its hash and the hash of the row before it in the log. The last line has the
ends of log and archive, the number of events, and the SHA-256 of all lines before it, signed with the
service's key.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Row, Select, select

from queenright.health.audit.audit import Signatures, check_signatures
from queenright.health.audit.audit_key import AuditKey, PublicKeys, encode_canonical_json
from queenright.health.store.event_chain import BEGINNING, link
from queenright.health.store.tables import AUDIT_ARCHIVE, EVENT_LOG_HEAD, EVENTS
from queenright.runtime.events import ALERT_CLASS, AgentEvent, EventType

FORMAT: Final = "queenright-audit/1"

# orjson accepts only `str` as keys, and SQLAlchemy's column names are a subclass of it.
_NAMES: Final = tuple(str(column.name) for column in EVENTS.columns if column.name != "hash")
_TYPES: Final = sorted(kind.value for kind in ALERT_CLASS)
_PAGE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCheck:
    """The result of verifying an exported file."""

    ok: bool
    rows: int
    """The number of events that were verified before the file ended or a line was invalid."""
    reason: str = ""
    """The problem and its line number; empty if there is none."""
    signatures: Signatures = field(default_factory=Signatures)
    key_id: str = ""
    """The key that signed the file; empty if it is not signed."""
    own_keys: bool = False
    """Whether the keys came from the file itself, which anyone can forge."""


def export_lines(
    conn: Connection,
    *,
    now: float,
    keys: PublicKeys,
    signer: AuditKey | None = None,
    since: float | None = None,
    until: float | None = None,
) -> Iterator[bytes]:
    """
    Yield the lines of the file, including line breaks.

    Args:
        signer: The key that signs the last line; None leaves it unsigned.

    Raises:
        sqlalchemy.exc.DBAPIError: The database cannot be read.
    """
    digest, rows = hashlib.sha256(), 0
    begin = {
        "kind": "begin",
        "format": FORMAT,
        "exported_at": datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
        "since": since,
        "until": until,
        "keys": [{"key_id": name, "public_key": base64.b64encode(key).decode()} for name, key in keys],
    }
    head = conn.execute(select(EVENT_LOG_HEAD)).one()
    line = _encode_line(begin)
    digest.update(line)
    yield line
    for row in _read_rows(conn, since, until):
        line = _encode_line(_build_line(row, head.base_hash or BEGINNING))
        digest.update(line)
        rows += 1
        yield line
    end: dict[str, Any] = {
        "kind": "end",
        "rows": rows,
        "log": {"begins_after": head.base_length, "length": head.length, "hash": _to_hex(head.hash)},
        "archive": {
            "begins_after": head.archive_base_seq,
            "hash": _to_hex(head.archive_hash or BEGINNING),
        },
        "digest": digest.hexdigest(),
    }
    if signer is not None:
        end["key_id"] = signer.key_id
        end["signature"] = signer.create_signature(encode_canonical_json(end))
    yield _encode_line(end)


def check_export(lines: Iterable[bytes], trusted_keys: PublicKeys | None = None) -> ExportCheck:
    """
    Verify an exported file without the database, in little memory.

    Detects any line that was changed, added, removed or moved, if a key of ``trusted_keys`` signed the file.
    It cannot detect events that were missing from the log when it was exported: that needs the whole log.

    Args:
        trusted_keys: The keys to trust; None trusts those in the file.
    """
    reader = _Reader(trusted_keys)
    try:
        signatures = check_signatures(reader.check_lines(lines), reader.keys)
    except _InvalidLineError as error:
        return ExportCheck(ok=False, rows=reader.rows, reason=str(error), own_keys=trusted_keys is None)
    return replace(reader.build_result(), signatures=signatures, ok=not signatures.fault_count)


class _InvalidLineError(Exception):
    """Raised when a line is invalid. The message names the line."""


class _Reader:
    """Verifies one file, line by line."""

    def __init__(self, trusted_keys: PublicKeys | None) -> None:
        self.keys = trusted_keys if trusted_keys is not None else PublicKeys()
        self.rows = 0
        self._own_keys = trusted_keys is None
        self._digest = hashlib.sha256()
        self._last: tuple[int, str] = (0, "")
        self._key_id = ""
        self._has_ended = False

    def build_result(self) -> ExportCheck:
        return ExportCheck(ok=True, rows=self.rows, key_id=self._key_id, own_keys=self._own_keys)

    def check_lines(self, lines: Iterable[bytes]) -> Iterator[tuple[int, AgentEvent]]:
        """Check every line, and yield the terminations among them."""
        for number, line in enumerate(lines, 1):
            try:
                termination = self._check_line(number, line)
            except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
                raise _InvalidLineError(f"line {number} cannot be read as a line of an export") from None
            if termination is not None:
                yield termination
        if not self._has_ended:
            raise _InvalidLineError("the last line is missing: the file is truncated")

    def _check_line(self, number: int, line: bytes) -> tuple[int, AgentEvent] | None:
        record = orjson.loads(line)
        kind = record["kind"]
        if self._has_ended:
            raise _InvalidLineError(f"line {number} was added after the end")
        if (kind == "begin") != (number == 1):
            raise _InvalidLineError(f"line {number} is out of place, or this is not an exported audit trail")
        if kind == "end":
            self._check_end(record)
            return None
        self._digest.update(line)
        if kind == "event":
            return self._check_event(number, record)
        if record["format"] != FORMAT:
            raise _InvalidLineError(
                f"the format {str(record['format'])[:40]!r} is not supported; this version reads {FORMAT!r}"
            )
        if self._own_keys:
            self.keys.add(base64.b64decode(key["public_key"]) for key in record["keys"])
        return None

    def _check_event(self, number: int, record: Mapping[str, Any]) -> tuple[int, AgentEvent] | None:
        data = record["data"]
        text = data if isinstance(data, str) else orjson.dumps(data).decode()
        row = (*(record[name] for name in _NAMES[:-1]), text)
        own_hash = link(bytes.fromhex(record["previous_hash"]), row)
        if own_hash is None or own_hash.hex() != record["hash"]:
            raise _InvalidLineError(f"line {number}, row {row[0]}, does not match its hash")
        seq, before = self._last
        if row[0] <= seq or (row[0] == seq + 1 and before and before != record["previous_hash"]):
            raise _InvalidLineError(f"line {number}, row {row[0]}, does not follow row {seq}")
        self._last = (row[0], record["hash"])
        self.rows += 1
        if record["type"] != EventType.AGENT_TERMINATED.value:
            return None
        fields = {name: record[name] for name in _NAMES if name not in ("seq", "type", "data")}
        return row[0], AgentEvent(type=EventType.AGENT_TERMINATED, data=orjson.loads(text), **fields)

    def _check_end(self, record: dict[str, Any]) -> None:
        self._has_ended = True
        if record["rows"] != self.rows or record["digest"] != self._digest.hexdigest():
            raise _InvalidLineError("the lines do not match the count and the digest in the last line")
        if "signature" not in record:
            return
        signature = record.pop("signature")
        if problem := self.keys.find_signature_problem(
            record.get("key_id"), signature, encode_canonical_json(record)
        ):
            raise _InvalidLineError(f"the signature of the last line is invalid: {problem}")
        self._key_id = record["key_id"]


def _read_rows(conn: Connection, since: float | None, until: float | None) -> Iterator[Row[Any]]:
    """Yield the rows of the audit trail, oldest first, each with the hash of the row before it."""
    before = EVENTS.alias()
    log = select(*EVENTS.columns, before.c.hash.label("previous_hash"))
    log = log.select_from(EVENTS.outerjoin(before, before.c.seq == EVENTS.c.seq - 1))
    archive = select(*(AUDIT_ARCHIVE.c[name] for name in (*EVENTS.columns.keys(), "previous_hash")))
    for query in (archive, log.where((EVENTS.c.type + "").in_(_TYPES))):
        columns = query.selected_columns
        if since is not None:
            query = query.where(columns.time >= since)
        if until is not None:
            query = query.where(columns.time < until)
        yield from _read_pages(conn, query)


def _read_pages(conn: Connection, query: Select[Any]) -> Iterator[Row[Any]]:
    seq, after = query.selected_columns.seq, None
    query = query.order_by(seq).limit(_PAGE)
    while rows := conn.execute(query if after is None else query.where(seq > after)).all():
        after = rows[-1].seq
        yield from rows


def _build_line(row: Row[Any], base: bytes) -> dict[str, Any]:
    line: dict[str, Any] = {"kind": "event", **{name: getattr(row, name) for name in _NAMES}}
    line["data"] = _parse_data(row.data)
    line["previous_hash"] = _to_hex(row.previous_hash if row.previous_hash is not None else base)
    line["hash"] = _to_hex(row.hash)
    return line


def _parse_data(text: Any) -> Any:
    """Return JSON text as an object if the object serializes to the same text, otherwise the text itself."""
    try:
        value = orjson.loads(text)
        return value if orjson.dumps(value).decode() == text else text
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return text


def _to_hex(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _encode_line(value: Mapping[str, Any]) -> bytes:
    # A forged row may have values of any type. Neither the row nor its line is then valid.
    return orjson.dumps(value, default=str, option=orjson.OPT_APPEND_NEWLINE)
