"""Settings files of coding agents: read, compared, written, and put back as they were."""

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

from queenright.cli.connecting.changes import FORMATS, Change, Item, Member, SettingsConflictError, add, undo
from queenright.cli.connecting.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Record:
    """What `connect` did to one file; it is kept beside the sessions until `disconnect`."""

    original: bytes | None
    """The file before; None: there was none."""
    written: str
    """The hash of the file after."""
    changes: tuple[Change, ...]
    folders: tuple[str, ...]
    """Folders that were made for it."""


@dataclass(frozen=True, slots=True)
class Update:
    """A file that is to be written, or removed."""

    path: Path
    before: bytes | None
    after: bytes | None
    record: Record | None
    """What is to be known of it afterwards."""

    @property
    def is_needed(self) -> bool:
        """Whether the file changes."""
        return self.before != self.after

    def diff(self) -> str:
        """Return what changes, as a unified diff."""
        old, new = ((text or b"").decode().splitlines(keepends=True) for text in (self.before, self.after))
        a, b = ("/dev/null" if text is None else str(self.path) for text in (self.before, self.after))
        lines = difflib.unified_diff(old, new, a, b)
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


class Records:
    """
    What was done to which file, in a folder that only its owner reads: settings can hold secrets.

    Args:
        folder: Where they are; made when the first is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, path: Path) -> Record | None:
        """
        Return what was done to a file, or None.

        Raises:
            SettingsError: It cannot be read.
        """
        file = self._file(path)
        content = _read(file)
        if content is None:
            return None
        try:
            found: dict[str, Any] = json.loads(content)
            original = found["original"]
            return Record(
                None if original is None else base64.b64decode(original),
                found["written"],
                tuple(Change(**{**one, "path": tuple(one["path"])}) for one in found["changes"]),
                tuple(found["folders"]),
            )
        except (ValueError, KeyError, TypeError):
            raise SettingsError(
                f"{file} is damaged: it says what was added to {path}. Remove that by hand, then {file}"
            ) from None

    def put(self, path: Path, record: Record | None) -> None:
        """Keep what was done to a file; None: nothing any more."""
        file = self._file(path)
        if record is None:
            file.unlink(missing_ok=True)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        original = record.original
        document = {
            "path": str(path),
            "original": None if original is None else base64.b64encode(original).decode(),
            "written": record.written,
            "changes": [asdict(change) for change in record.changes],
            "folders": record.folders,
        }
        _replace(file, json.dumps(document, indent=1, default=str).encode(), 0o600)

    def _file(self, path: Path) -> Path:
        return self._folder / f"{_hash(os.fsencode(path.resolve()))[:32]}.json"


def plan_connect(
    path: Path, wanted: Sequence[Member | Item], records: Records, *, replace: bool = False
) -> Update:
    """
    Return what writes the wanted settings into a file.

    Raises:
        SettingsConflictError: A setting has another value, and ``replace`` is not set.
        SettingsError: The file cannot be read, or is no document of its format.
    """
    before, known = _read(path), records.get(path)
    original = before if known is None else _without(path, before, known)
    text = _text(path, original)
    replaced = {change.path for change in known.changes if change.has_old} if known else set()
    try:
        text, changes = add(text, wanted, path.suffix, replace=replace, replaced=replaced)
    except SettingsConflictError:
        raise
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}; nothing was written. `--print` prints the settings") from None
    if not changes:
        return Update(path, before, before, known)
    after = text.encode()
    folders = known.folders if known else _missing_folders(path)
    return Update(path, before, after, Record(original, _hash(after), tuple(changes), folders))


def plan_disconnect(path: Path, records: Records) -> Update | None:
    """Return what removes from a file what `connect` added; None: it added nothing. Raises as the other."""
    known = records.get(path)
    if known is None:
        return None
    before = _read(path)
    return Update(path, before, _without(path, before, known), None)


def write(update: Update, records: Records) -> None:
    """
    Write a file, through a symbolic link to it and with the rights it has, whole or not at all.

    Raises:
        SettingsError: It was changed meanwhile, or cannot be written.
    """
    path = update.path
    if _read(path) != update.before:
        raise SettingsError(f"{path} was changed meanwhile, and is as it was left; run the command again")
    known = records.get(path)
    try:
        if update.record is not None:
            # First: who is interrupted behind it can still disconnect.
            records.put(path, update.record)
        if update.after is None:
            path.resolve().unlink(missing_ok=True)
        elif update.is_needed:
            path.resolve().parent.mkdir(parents=True, exist_ok=True)
            _replace(path.resolve(), update.after, 0o600)
        if update.record is None:
            records.put(path, None)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror} ({error.filename})") from None
    if update.record is None and known is not None and update.after is None:
        with contextlib.suppress(OSError):  # something else is in it by now
            for folder in known.folders:
                Path(folder).rmdir()


def _without(path: Path, content: bytes | None, known: Record) -> bytes | None:
    """Return a file without what was added to it."""
    if content is None or _hash(content) == known.written:
        return None if content is None else known.original
    try:
        text = undo(_text(path, content), known.changes, path.suffix)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}; remove it by hand") from None
    empty = FORMATS[path.suffix].load(text) == {} and known.original is None
    return None if empty and "#" not in text else text.encode()


def _text(path: Path, content: bytes | None) -> str:
    """Return a document as text, once it is clear that it is one."""
    kind = FORMATS[path.suffix]
    if content is None:
        return str(kind.EMPTY)
    name = path.suffix[1:].upper()
    way_out = "Nothing was written: correct it and run the command again, or see `--print`"
    try:
        text = content.decode()
        kind.load(text)
    except UnicodeDecodeError as error:
        where = content[: error.start].decode()
        line, column = where.count("\n") + 1, len(where.rpartition("\n")[2]) + 1
        reason = f"it is not UTF-8 at line {line} column {column}"
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at line {error.lineno} column {error.colno}"
    except ValueError as error:
        reason = str(error)
    else:
        return text
    raise SettingsError(f"{path} is not valid {name}: {reason}. {way_out}")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None


def _replace(path: Path, content: bytes, mode: int) -> None:
    """Write a file whole or not at all; one that is there keeps its rights and owner."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            with contextlib.suppress(FileNotFoundError):
                found = path.stat()
                mode = stat.S_IMODE(found.st_mode)
                if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
                    with contextlib.suppress(PermissionError):
                        os.fchown(file.fileno(), found.st_uid, found.st_gid)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _missing_folders(path: Path) -> tuple[str, ...]:
    """Return the folders that have to be made for a file, the innermost first."""
    parents = path.resolve().parents
    return tuple(str(folder) for folder in parents if not folder.exists())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
