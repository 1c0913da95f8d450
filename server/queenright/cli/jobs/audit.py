"""`queenright audit`: whether anyone has changed the event log, and the audit trail as a file."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import typer
from sqlalchemy import Connection

from queenright.cli.output.progress import bar, counted
from queenright.cli.errors import UsageError
from queenright.health.audit import Audit, Signatures, verify_audit
from queenright.health.audit_export import ExportCheck, check_export, export_lines
from queenright.health.audit_key import PUBLIC_NAME, AuditKey, PublicKeys
from queenright.health.event_chain import Verification
from queenright.health.store import Store
from queenright.instrumentation.errors import QueenrightError
from queenright.server.settings import Settings

_OWN_KEYS = (
    "The keys are the file's own: compare their ids with the service's, "
    "or name the service's audit-key.pub with --public-key."
)
_NOT_SHOWN = "This shows nothing of events that had been taken out of the log before the export."


def verify(settings: Settings, public_keys: Sequence[Path], *, as_json: bool) -> int:
    """Check event log, archive and signatures; 1 if anything was changed or is not signed."""
    keys = _keys(settings, public_keys)
    with _reading(settings) as store, bar("Checking the event log", counts=False):
        found = store.read_now(lambda conn: verify_audit(conn, keys))
    if as_json:
        typer.echo(json.dumps(_audit_row(found)))
    else:
        for line in _audit_lines(found):
            typer.echo(line)
    return 0 if found.ok else 1


def verify_export(settings: Settings, file: Path, public_keys: Sequence[Path], *, as_json: bool) -> int:
    """Check an exported file alone; 1 if anything in it was changed or is not signed."""
    trusted = _keys(settings, public_keys)
    try:
        with file.open("rb") as lines:
            found = check_export(counted(lines, "Checking events"), trusted if len(trusted) else None)
    except OSError as error:
        raise QueenrightError(f"cannot read {file}: {error.strerror}; name an exported file") from error
    if as_json:
        typer.echo(json.dumps(_export_row(found)))
    else:
        for line in _export_lines(found):
            typer.echo(line)
    return 0 if found.ok else 1


def export(settings: Settings, since: str | None, until: str | None, out: Path | None) -> int:
    """Write the audit trail to a file, or to standard output."""
    begin, end = _moment("--since", since), _moment("--until", until)
    signer = AuditKey.load(settings.storage)
    keys = PublicKeys.load(settings.storage / PUBLIC_NAME, missing_ok=True)
    if signer is not None:
        keys.add([signer.public])

    def write(conn: Connection, file: BinaryIO) -> int:
        lines = export_lines(conn, now=time.time(), keys=keys, signer=signer, since=begin, until=end)
        return _write(lines, file)

    with _reading(settings) as store:
        if out is None:
            store.read_now(lambda conn: write(conn, sys.stdout.buffer))
            return 0
        with _replacing(out) as file:
            count = store.read_now(lambda conn: write(conn, file))
    signed = f"signed by key {signer.key_id}" if signer is not None else "not signed: there is no audit key"
    typer.echo(f"{count} events in {out}, {signed}.")
    return 0


def _keys(settings: Settings, files: Sequence[Path]) -> PublicKeys:
    if files:
        return PublicKeys.load(*files)
    return PublicKeys.load(settings.storage / PUBLIC_NAME, missing_ok=True)


@contextlib.contextmanager
def _reading(settings: Settings) -> Iterator[Store]:
    path = settings.storage / "queenright.db"
    if settings.database is None and not path.is_file():
        raise UsageError(f"There is no event log at {path}; name its folder with --storage.")
    store = Store.open(settings.database_url, read_only=True)
    try:
        yield store
    finally:
        store.close_now()


def _moment(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is no time; write 2026-03-01 or 2026-03-01T12:00:00Z", param_hint=option
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _write(lines: Iterable[bytes], file: BinaryIO) -> int:
    count = -2  # the first and the last line are no events
    for line in counted(lines, "Writing events", prints=file is sys.stdout.buffer):
        file.write(line)
        count += 1
    file.flush()
    return count


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Give a file that takes the place of ``path`` when it is whole; nobody else may read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                yield file
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise QueenrightError(
            f"cannot write {path}: {error.strerror}; give a file that this user may write"
        ) from error


def _audit_lines(found: Audit) -> Iterator[str]:
    log, archive = found.log, found.archive
    if not log.ok:
        yield f"The event log was changed: row {log.first_bad}: {log.reason}"
    elif log.let_go:
        yield (
            f"The event log is whole: {log.rows} rows, each as it was written; "
            f"{log.let_go} older ones were let go of."
        )
    else:
        yield f"The event log is whole: {log.rows} rows, each as it was written."
    if not archive.ok:
        yield f"The audit archive was changed: row {archive.first_bad}: {archive.reason}"
    elif archive.rows or archive.let_go:
        yield f"The audit archive is whole: {archive.rows} rows, each as it was in the log."
    yield from _signature_lines(found.signatures)


def _export_lines(found: ExportCheck) -> Iterator[str]:
    if found.reason:
        yield f"The file was changed: {found.reason}"
        return
    whose = f"signed by key {found.key_id}" if found.key_id else "but not signed, so anybody can have made it"
    yield f"The file is whole: {found.rows} events, each as it was exported, {whose}."
    yield from _signature_lines(found.signatures)
    if found.own_keys:
        yield _OWN_KEYS
    yield _NOT_SHOWN


def _signature_lines(found: Signatures) -> Iterator[str]:
    if found.terminations and not found.fault_count:
        yield f"Terminations: {found.terminations}, each signed by a key of the service."
    if found.fault_count:
        yield f"Terminations: {found.terminations}, and {found.fault_count} are not signed as they must be:"
        yield from (f"  {fault}" for fault in found.faults)
        if found.fault_count > len(found.faults):
            yield f"  and {found.fault_count - len(found.faults)} more"


def _audit_row(found: Audit) -> dict[str, Any]:
    return {
        **_chain_row(found.log),
        "ok": found.ok,
        "archive": _chain_row(found.archive),
        **_signatures_row(found.signatures),
    }


def _chain_row(found: Verification) -> dict[str, Any]:
    return {
        "ok": found.ok,
        "rows": found.rows,
        "let_go": found.let_go,
        "first_bad": found.first_bad,
        "reason": found.reason,
        "head": found.head,
    }


def _export_row(found: ExportCheck) -> dict[str, Any]:
    return {
        "ok": found.ok,
        "rows": found.rows,
        "reason": found.reason,
        "key_id": found.key_id,
        "own_keys": found.own_keys,
        **_signatures_row(found.signatures),
    }


def _signatures_row(found: Signatures) -> dict[str, Any]:
    return {
        "terminations": found.terminations,
        "unsigned": found.fault_count,
        "faults": [
            {"seq": fault.seq, "agent_id": fault.agent_id, "reason": fault.reason} for fault in found.faults
        ],
    }
