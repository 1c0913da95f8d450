"""
The inbox of a node: what it was told and has not taken up, one file an input.

Its user's words wait for as long as it takes. A note, which is what others have to tell it, is for one
incarnation of its worker and may be for a while only: then it is thrown away.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from queenright.runtime.events import Clock
from queenright.runtime.storage.files import (
    Disk,
    Skipped,
    UnusableFileError,
    read_json,
    sync_folder,
    write_json,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that a node is told by who is not its user: that it is stuck, or was brought back."""

    note_id: str
    """The same id is taken up once."""
    content: str
    incarnation_id: str
    """For this life of the worker and no other."""
    expires_at: float | None = None
    """From then on, in seconds since the epoch, it is not taken up any more."""

    @property
    def suffix(self) -> str:
        """What the ids of its inputs end with."""
        return f"-note-{hashlib.sha256(self.note_id.encode()).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One input in an inbox."""

    id: str
    content: str
    note: Note | None = None
    """None: it is the user's."""

    def is_stale(self, now: float, incarnation_id: str) -> bool:
        """Return whether it is a note that came too late, or for another life."""
        note = self.note
        if note is None:
            return False
        return note.incarnation_id != incarnation_id or (
            note.expires_at is not None and note.expires_at <= now
        )


class Inbox:
    """
    Inputs on the disk, oldest first.

    Args:
        folder: Where they lie; made with the first.
        disk: Does the work.
        clock: Inputs are ordered by when they came.
        random: Ids of inputs.
    """

    def __init__(self, folder: Path, *, disk: Disk, clock: Clock, random: Random) -> None:
        self.skipped: list[Skipped] = []
        """What could not be read; it is left alone."""
        self._folder = folder
        self._disk = disk
        self._clock = clock
        self._random = random
        self._numbers = itertools.count()

    async def put(self, content: str) -> str:
        """
        Add an input and return its id; on return it is on the disk.

        Raises:
            OSError: The disk refused.
        """
        at = self._clock()
        name = f"{self._order(at)}-{self._random.getrandbits(32):08x}"
        row = {"content": content, "at": at}
        await self._disk.run(lambda: write_json(self._folder / f"{name}.json", row))
        return name

    async def put_note(self, note: Note) -> None:
        """
        Add a note, unless it lies there; on return it is on the disk.

        Raises:
            OSError: The disk refused.
        """
        at = self._clock()
        name = f"{self._order(at)}{note.suffix}"
        row = {
            "content": note.content,
            "at": at,
            "note_id": note.note_id,
            "incarnation_id": note.incarnation_id,
            "expires_at": note.expires_at,
        }

        def put() -> None:
            if not any(self._folder.glob(f"*{note.suffix}.json")):
                write_json(self._folder / f"{name}.json", row)

        await self._disk.run(put)

    async def read(self) -> list[Given]:
        """Return what lies there, oldest first."""
        return await self._disk.run(self._read)

    async def remove(self, ids: Collection[str]) -> None:
        """Remove inputs that were taken up."""
        if ids:
            await self._disk.run(lambda: self._remove(ids))

    def _order(self, at: float) -> str:
        return f"{int(at * 1000):015d}-{next(self._numbers) % 1_000_000:06d}"

    def _read(self) -> list[Given]:
        found: list[Given] = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                row = read_json(path)
                content = row.get("content") if isinstance(row, dict) else None
                if not isinstance(content, str):
                    raise UnusableFileError(path, "it is no input")
                found.append(Given(id=path.stem, content=content, note=_note(row)))
            except FileNotFoundError:
                continue
            except UnusableFileError as error:
                if all(skipped.path != path for skipped in self.skipped):
                    _log.warning("left an input alone: %s", error)
                    self.skipped.append(Skipped(path, error.reason))
        return found

    def _remove(self, ids: Collection[str]) -> None:
        for name in ids:
            (self._folder / f"{name}.json").unlink(missing_ok=True)
        sync_folder(self._folder)


def _note(row: dict[str, Any]) -> Note | None:
    if "note_id" not in row:
        return None
    expires_at = row.get("expires_at")
    return Note(
        note_id=str(row["note_id"]),
        content=str(row["content"]),
        incarnation_id=str(row.get("incarnation_id")),
        expires_at=float(expires_at) if isinstance(expires_at, int | float) else None,
    )
