"""`queenright audit`: verify the event log, and export the audit trail."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from queenright.cli.errors import UsageError
from queenright.cli.options import Config, Json, Storage, collect_settings_overrides, parse_path
from queenright.cli.output.progress import progress_bar, track
from queenright.instrumentation.counts import format_count

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from queenright.health.audit.audit import AuditResult, Signatures
    from queenright.health.audit.audit_export import ExportCheck
    from queenright.health.audit.audit_key import PublicKeys
    from queenright.health.store.store import Store
    from queenright.server.settings import Settings

audit = typer.Typer(no_args_is_help=True)

_EXPORTED_KEYS_NOTE: Final = (
    "The keys are from the file itself: compare their ids with the service's, "
    "or pass the service's audit-key.pub with --public-key."
)
_REMOVED_EVENTS_NOTE: Final = (
    "Events that were removed from the log before the export cannot be detected here."
)


@audit.command("verify", epilog="Example: queenright audit verify --storage .queenright")
def audit_verify(
    storage: Storage = None,
    config: Config = None,
    public_key: Annotated[
        list[Path] | None,
        typer.Option(
            "--public-key",
            parser=parse_path,
            metavar="FILE",
            help="Trust only this key (PEM); repeatable. Default: audit-key.pub in the storage folder.",
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(parser=parse_path, metavar="FILE", help="Check an exported file, not the database."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify hash chains and signatures. Exit code 1 if anything was changed or is not signed."""
    from queenright.server.settings import load_settings

    settings = load_settings(config, **collect_settings_overrides(storage))
    if export is not None:
        raise typer.Exit(_verify_export(settings, export, public_key or [], as_json=as_json))
    raise typer.Exit(_verify_log(settings, public_key or [], as_json=as_json))


@audit.command("export", epilog="Example: queenright audit export --since 2026-03-01 --out audit.jsonl")
def audit_export(
    storage: Storage = None,
    config: Config = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Start, inclusive: ISO 8601, UTC by default.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="End, exclusive.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(parser=parse_path, metavar="FILE", help="Output file. Default: standard output."),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(min=0, help="Partition of a cluster that has several: each has its own trail."),
    ] = None,
) -> None:
    """Export the audit trail as signed JSON lines; `audit verify --export` checks the file."""
    from queenright.health.audit.audit_export import export_lines
    from queenright.health.audit.audit_key import PUBLIC_NAME, AuditKey, PublicKeys
    from queenright.server.settings import load_settings

    settings = load_settings(config, **collect_settings_overrides(storage))
    start, end = _parse_time("--since", since), _parse_time("--until", until)
    if start is not None and end is not None and end <= start:
        raise typer.BadParameter(
            f"{until!r} is not after --since {since!r}; give a later time", param_hint="--until"
        )
    signer = AuditKey.load(settings.storage)
    keys = PublicKeys.load(settings.storage / PUBLIC_NAME, missing_ok=True)
    if signer is not None:
        keys.add([signer.public])

    def write(conn: Connection, file: BinaryIO) -> int:
        lines = export_lines(conn, now=time.time(), keys=keys, signer=signer, since=start, until=end)
        return _write_lines(lines, file)

    partitions = _list_partitions(settings)
    if partition is None and len(partitions) > 1:
        raise UsageError(
            f"The database has {len(partitions)} partitions, each with its own trail; select one with "
            "--partition."
        )
    with _open_store(settings, partition or 0) as store:
        if out is None:
            store.read_now(lambda conn: write(conn, sys.stdout.buffer))
            return
        with _atomic_file(out) as file:
            count = store.read_now(lambda conn: write(conn, file))
    signature = (
        f"signed by key {signer.key_id}" if signer is not None else "not signed: there is no audit key"
    )
    typer.echo(f"{format_count(count, 'event')} in {out}, {signature}.")


def _verify_log(settings: Settings, public_keys: Sequence[Path], *, as_json: bool) -> int:
    from queenright.health.audit.audit import verify_audit

    keys = _load_keys(settings, public_keys)
    audits = {}
    for partition in _list_partitions(settings):
        with (
            _open_store(settings, partition) as store,
            progress_bar("Checking the event log", is_counted=False),
        ):
            audits[partition] = store.read_now(lambda conn: verify_audit(conn, keys))
    is_ok = all(audit.ok for audit in audits.values())
    if as_json:
        rows = [_audit_to_dict(audit) | {"partition": partition} for partition, audit in audits.items()]
        typer.echo(
            json.dumps(_audit_to_dict(audits[0]) if len(audits) == 1 else {"ok": is_ok, "partitions": rows})
        )
    else:
        for partition, audit in audits.items():
            for line in _format_audit(audit):
                typer.echo(line if len(audits) == 1 else f"Partition {partition}: {line}")
    return 0 if is_ok else 1


def _verify_export(settings: Settings, file: Path, public_keys: Sequence[Path], *, as_json: bool) -> int:
    from queenright.health.audit.audit_export import check_export
    from queenright.instrumentation.errors import QueenrightError

    trusted_keys = _load_keys(settings, public_keys)
    try:
        with file.open("rb") as lines:
            check = check_export(track(lines, "Checking events"), trusted_keys if len(trusted_keys) else None)
    except OSError as error:
        raise QueenrightError(f"cannot read {file}: {error.strerror}; pass an exported file") from error
    if as_json:
        typer.echo(json.dumps(_export_check_to_dict(check)))
    else:
        for line in _format_export_check(check):
            typer.echo(line)
    return 0 if check.ok else 1


def _load_keys(settings: Settings, files: Sequence[Path]) -> PublicKeys:
    from queenright.health.audit.audit_key import PUBLIC_NAME, PublicKeys

    if files:
        return PublicKeys.load(*files)
    return PublicKeys.load(settings.storage / PUBLIC_NAME, missing_ok=True)


def _list_partitions(settings: Settings) -> list[int]:
    from queenright.health.store.engines import list_partitions

    path = settings.storage / "queenright.db"
    if settings.database is None and not path.is_file():
        raise UsageError(f"There is no event log at {path}; pass its folder with --storage.")
    return list_partitions(settings.database_url)


@contextlib.contextmanager
def _open_store(settings: Settings, partition: int) -> Iterator[Store]:
    from queenright.health.store.store import Store

    store = Store.open(settings.database_url, read_only=True, partition=partition)
    try:
        yield store
    finally:
        store.close_now()


def _parse_time(option: str, text: str | None) -> float | None:
    from datetime import UTC, datetime

    if text is None:
        return None
    try:
        parsed_time = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time; write 2026-03-01 or 2026-03-01T12:00:00Z", param_hint=option
        ) from None
    return (parsed_time if parsed_time.tzinfo else parsed_time.replace(tzinfo=UTC)).timestamp()


def _write_lines(lines: Iterable[bytes], file: BinaryIO) -> int:
    count = -2  # The first and the last line are not events.
    for line in track(lines, "Writing events", uses_stdout=file is sys.stdout.buffer):
        file.write(line)
        count += 1
    file.flush()
    return count


@contextlib.contextmanager
def _atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file, readable by its owner only, that replaces ``path`` once it is complete."""
    from queenright.instrumentation.errors import QueenrightError

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
        raise QueenrightError(f"cannot write {path}: {error.strerror}; pass a writable file") from error


def _format_audit(audit: AuditResult) -> Iterator[str]:
    log, archive = audit.log, audit.archive
    if log.ok:
        pruned_text = f"; {format_count(log.let_go, 'older row')} pruned" if log.let_go else ""
        yield f"The event log is intact: {format_count(log.rows, 'row')}, none changed{pruned_text}."
    else:
        yield f"The event log was changed: row {log.first_bad}: {log.reason}"
    if not archive.ok:
        yield f"The audit archive was changed: row {archive.first_bad}: {archive.reason}"
    elif archive.rows or archive.let_go:
        yield f"The audit archive is intact: {format_count(archive.rows, 'row')}, each as it was in the log."
    yield from _format_signatures(audit.signatures)


def _format_export_check(check: ExportCheck) -> Iterator[str]:
    if check.reason:
        yield f"The file was changed: {check.reason}"
        return
    signature = f"signed by key {check.key_id}" if check.key_id else "not signed: anyone could have made it"
    yield f"The file is intact: {format_count(check.rows, 'event')}, none changed, {signature}."
    yield from _format_signatures(check.signatures)
    if check.own_keys:
        yield _EXPORTED_KEYS_NOTE
    yield _REMOVED_EVENTS_NOTE


def _format_signatures(signatures: Signatures) -> Iterator[str]:
    if signatures.terminations and not signatures.fault_count:
        yield f"Terminations: {signatures.terminations}, each signed by a key of the service."
    if signatures.fault_count:
        yield f"Terminations: {signatures.terminations}, {signatures.fault_count} without a valid signature:"
        yield from (f"  {fault}" for fault in signatures.faults)
        if signatures.fault_count > len(signatures.faults):
            yield f"  and {signatures.fault_count - len(signatures.faults)} more"


def _audit_to_dict(audit: AuditResult) -> dict[str, Any]:
    return {
        **asdict(audit.log),
        "ok": audit.ok,
        "archive": asdict(audit.archive),
        **_signatures_to_dict(audit.signatures),
    }


def _export_check_to_dict(check: ExportCheck) -> dict[str, Any]:
    row = asdict(check)
    del row["signatures"]
    return row | _signatures_to_dict(check.signatures)


def _signatures_to_dict(signatures: Signatures) -> dict[str, Any]:
    row = asdict(signatures)
    row["unsigned"] = row.pop("fault_count")
    return row
