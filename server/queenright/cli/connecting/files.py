"""Settings files of coding agents: plan, write and undo changes."""

from __future__ import annotations

import base64
import contextlib
import difflib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from queenright.cli.connecting.changes import (
    FORMATS,
    Item,
    RequiredKey,
    SettingsChange,
    SettingsConflictError,
    add,
    undo,
)
from queenright.cli.connecting.errors import AgentSettingsError


@dataclass(frozen=True, slots=True)
class ConnectRecord:
    """What `connect` changed in one file; kept until `disconnect`."""

    original: bytes | None
    """Content before the change; None if the file did not exist."""
    hash_after: str
    """Hash of the file after the change."""
    changes: tuple[SettingsChange, ...]
    folders: tuple[str, ...]
    """Folders that were created for the file."""


@dataclass(frozen=True, slots=True)
class FileUpdate:
    """A pending change of a file; ``after`` is None if the file will be removed."""

    path: Path
    before: bytes | None
    after: bytes | None
    record: ConnectRecord | None
    """Record to keep afterwards; None deletes it."""

    @property
    def is_needed(self) -> bool:
        """Whether the file changes."""
        return self.before != self.after

    def diff(self) -> str:
        """Return the change as a unified diff."""
        old, new = ((text or b"").decode().splitlines(keepends=True) for text in (self.before, self.after))
        a, b = ("/dev/null" if text is None else str(self.path) for text in (self.before, self.after))
        lines = difflib.unified_diff(old, new, a, b)
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


class RecordStore:
    """
    Stores records of changed files in a folder that only its owner can read: settings can hold secrets.

    Args:
        folder: The folder; created with the first record.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, path: Path) -> ConnectRecord | None:
        """
        Return the record of a file, or None.

        Raises:
            AgentSettingsError: The record cannot be read.
        """
        file = self._get_record_path(path)
        content = _read_file(file)
        if content is None:
            return None
        try:
            document: dict[str, Any] = json.loads(content)
            original = document["original"]
            return ConnectRecord(
                None if original is None else base64.b64decode(original),
                document["written"],
                tuple(
                    SettingsChange(**{**change, "path": tuple(change["path"])})
                    for change in document["changes"]
                ),
                tuple(document["folders"]),
            )
        except (ValueError, KeyError, TypeError):
            raise AgentSettingsError(
                f"{file} is damaged: it records what was added to {path}. "
                f"Remove the additions by hand, then {file}"
            ) from None

    def put(self, path: Path, record: ConnectRecord | None) -> None:
        """Store the record of a file; None deletes it."""
        file = self._get_record_path(path)
        if record is None:
            file.unlink(missing_ok=True)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        original = record.original
        document = {
            "path": str(path),
            "original": None if original is None else base64.b64encode(original).decode(),
            "written": record.hash_after,
            "changes": [asdict(change) for change in record.changes],
            "folders": record.folders,
        }
        _replace_file(file, json.dumps(document, indent=1, default=str).encode(), 0o600)

    def _get_record_path(self, path: Path) -> Path:
        return self._folder / f"{_hash(os.fsencode(path.resolve()))[:32]}.json"


def plan_connect(
    path: Path, requirements: Sequence[RequiredKey | Item], records: RecordStore, *, replace: bool = False
) -> FileUpdate:
    """
    Return the update that adds the required settings to a file.

    Raises:
        SettingsConflictError: A setting has another value, and ``replace`` is not set.
        AgentSettingsError: The file cannot be read, or is not valid.
    """
    before, record = _read_file(path), records.get(path)
    original = before if record is None else _undo_changes(path, before, record)
    text = _decode(path, original)
    own_paths = {change.path for change in record.changes if change.has_old} if record else set()
    try:
        text, changes = add(text, requirements, path.suffix, replace=replace, own_paths=own_paths)
    except SettingsConflictError:
        raise
    except AgentSettingsError as error:
        raise AgentSettingsError(
            f"{path}: {error}; nothing was written; `--print` prints the settings"
        ) from None
    if not changes:
        return FileUpdate(path, before, before, record)
    after = text.encode()
    folders = record.folders if record else _list_missing_folders(path)
    return FileUpdate(path, before, after, ConnectRecord(original, _hash(after), tuple(changes), folders))


def plan_disconnect(path: Path, records: RecordStore) -> FileUpdate | None:
    """Return the update that removes what `connect` added; None if it added nothing. See ``plan_connect``."""
    record = records.get(path)
    if record is None:
        return None
    before = _read_file(path)
    return FileUpdate(path, before, _undo_changes(path, before, record), None)


def write(update: FileUpdate, records: RecordStore) -> None:
    """
    Write a file atomically, following a symbolic link and keeping its permissions.

    Raises:
        AgentSettingsError: The file was changed in the meantime, or cannot be written.
    """
    path = update.path
    if _read_file(path) != update.before:
        raise AgentSettingsError(
            f"{path} was changed in the meantime and was not written; run the command again"
        )
    record = records.get(path)
    try:
        if update.record is not None:
            # The record comes before the file, so that an interrupted `connect` can be undone.
            records.put(path, update.record)
        if update.after is None:
            path.resolve().unlink(missing_ok=True)
        elif update.is_needed:
            path.resolve().parent.mkdir(parents=True, exist_ok=True)
            _replace_file(path.resolve(), update.after, 0o600)
        if update.record is None:
            records.put(path, None)
    except OSError as error:
        raise AgentSettingsError(f"cannot write {path}: {error.strerror} ({error.filename})") from None
    if update.record is None and record is not None and update.after is None:
        with contextlib.suppress(OSError):  # a folder is no longer empty
            for folder in record.folders:
                Path(folder).rmdir()


def _undo_changes(path: Path, content: bytes | None, record: ConnectRecord) -> bytes | None:
    """Return the content of a file without what was added to it."""
    if content is None or _hash(content) == record.hash_after:
        return None if content is None else record.original
    try:
        text = undo(_decode(path, content), record.changes, path.suffix)
    except AgentSettingsError as error:
        raise AgentSettingsError(f"{path}: {error}; remove it by hand") from None
    is_blank = "".join(text.split()) in ("", "{}")
    return None if is_blank and record.original is None else text.encode()


def _decode(path: Path, content: bytes | None) -> str:
    """Return a document as text, after checking that it is valid."""
    document_format = FORMATS[path.suffix]
    if content is None or not content.strip():
        return str(document_format.EMPTY)
    name = path.suffix[1:].upper()
    hint = "Nothing was written. Correct the file and run the command again, or use `--print`"
    try:
        text = content.decode()
        document_format.load(text)
    except UnicodeDecodeError as error:
        preceding_text = content[: error.start].decode()
        line, column = preceding_text.count("\n") + 1, len(preceding_text.rpartition("\n")[2]) + 1
        reason = f"it is not UTF-8 at line {line} column {column}"
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at line {error.lineno} column {error.colno}"
    except ValueError as error:
        reason = str(error)
    else:
        return text
    raise AgentSettingsError(f"{path} is not valid {name}: {reason}. {hint}")


def _read_file(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AgentSettingsError(f"cannot read {path}: {error.strerror}") from None


def _replace_file(path: Path, content: bytes, mode: int) -> None:
    """Write a file atomically; an existing file keeps its permissions and owner."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                mode = stat.S_IMODE(status.st_mode)
                if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                    with contextlib.suppress(PermissionError):
                        os.fchown(file.fileno(), status.st_uid, status.st_gid)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _list_missing_folders(path: Path) -> tuple[str, ...]:
    """Return the folders to create for a file, innermost first."""
    parents = path.resolve().parents
    return tuple(str(folder) for folder in parents if not folder.exists())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
