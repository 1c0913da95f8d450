"""
The inbox of a node: inputs that the node has not read yet, one file each.

User input waits indefinitely. A note, from anyone other than the user, is valid for one incarnation of the
worker, optionally for a limited time, and then dropped.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from queenright.runtime.events import Clock
from queenright.runtime.storage.files import (
    Disk,
    UnusableFileError,
    read_json,
    sync_folder,
    write_json,
)
from queenright.runtime.storage.session_state import describe_invalid_state

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A message to a node from someone other than its user, such as a nudge or a recovery notice."""

    note_id: str
    """Notes with the same id are read once."""
    content: str
    incarnation_id: str
    """The only incarnation of the worker that may read it."""
    expires_at: float | None = None
    """Time after which it is dropped, in seconds since the epoch."""

    @property
    def suffix(self) -> str:
        """The suffix of its input ids."""
        return f"-note-{hashlib.sha256(self.note_id.encode()).hexdigest()[:32]}"


_NOTE_ADAPTER: Final = TypeAdapter(Note)


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxItem:
    """One input in an inbox."""

    id: str
    content: str
    note: Note | None = None
    """None for user input."""

    def is_stale(self, now: float, incarnation_id: str) -> bool:
        """Return whether it is a note that has expired, or is for another incarnation."""
        note = self.note
        if note is None:
            return False
        return note.incarnation_id != incarnation_id or (
            note.expires_at is not None and note.expires_at <= now
        )


class Inbox:
    """
    Inputs on disk, oldest first.

    Args:
        folder: Folder of the inputs; created with the first.
        clock: Orders inputs by arrival.
    """

    def __init__(self, folder: Path, *, disk: Disk, clock: Clock, random: Random) -> None:
        self._folder = folder
        self._disk = disk
        self._clock = clock
        self._random = random
        self._numbers = itertools.count()
        self._unreadable_files: set[Path] = set()
        """Unreadable files, which are left in place and logged once."""

    async def put(self, content: str) -> str:
        """
        Add an input and return its id. It is durable when this returns.

        Raises:
            OSError: The disk write failed.
        """
        at = self._clock()
        name = f"{self._make_sort_key(at)}-{self._random.getrandbits(32):08x}"
        row = {"content": content, "at": at}
        await self._disk.run(lambda: write_json(self._folder / f"{name}.json", row))
        return name

    async def put_note(self, note: Note) -> None:
        """
        Add a note, unless it is already there. It is durable when this returns.

        Raises:
            OSError: The disk write failed.
        """
        at = self._clock()
        name = f"{self._make_sort_key(at)}{note.suffix}"
        row = {**asdict(note), "at": at}

        def put() -> None:
            if not any(self._folder.glob(f"*{note.suffix}.json")):
                write_json(self._folder / f"{name}.json", row)

        await self._disk.run(put)

    async def read(self) -> list[InboxItem]:
        """Return all inputs, oldest first."""
        return await self._disk.run(self._read)

    async def remove(self, ids: Collection[str]) -> None:
        """Remove inputs that were read."""
        if ids:
            await self._disk.run(lambda: self._remove(ids))

    def _make_sort_key(self, at: float) -> str:
        return f"{int(at * 1000):015d}-{next(self._numbers) % 1_000_000:06d}"

    def _read(self) -> list[InboxItem]:
        items: list[InboxItem] = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                row = read_json(path)
                content = row.get("content") if isinstance(row, dict) else None
                if not isinstance(content, str):
                    raise UnusableFileError(path, "it is not an input")
                items.append(InboxItem(id=path.stem, content=content, note=_parse_note(path, row)))
            except FileNotFoundError:
                continue
            except UnusableFileError as error:
                if path not in self._unreadable_files:
                    _log.warning("ignored an unreadable input: %s", error)
                    self._unreadable_files.add(path)
        return items

    def _remove(self, ids: Collection[str]) -> None:
        for name in ids:
            (self._folder / f"{name}.json").unlink(missing_ok=True)
        sync_folder(self._folder)


def _parse_note(path: Path, row: dict[str, Any]) -> Note | None:
    if "note_id" not in row:
        return None
    if not isinstance(row.get("expires_at"), int | float):
        row = row | {"expires_at": None}
    try:
        return _NOTE_ADAPTER.validate_python(row)
    except ValidationError as error:
        raise UnusableFileError(path, describe_invalid_state(error)) from error
