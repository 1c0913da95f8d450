"""The inbox of a node: what its user said and it has not taken up, one file an input."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection
from pathlib import Path
from random import Random

from queenright.runtime.events import Clock
from queenright.runtime.storage.files import Disk, FileUnusable, Skipped, read_json, sync_folder, write_json

_log = logging.getLogger(__name__)


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
        number = next(self._numbers) % 1_000_000
        name = f"{int(at * 1000):015d}-{number:06d}-{self._random.getrandbits(32):08x}"
        row = {"content": content, "at": at}
        await self._disk.run(lambda: write_json(self._folder / f"{name}.json", row))
        return name

    async def read(self) -> list[tuple[str, str]]:
        """Return id and content of what lies there, oldest first."""
        return await self._disk.run(self._read)

    async def remove(self, ids: Collection[str]) -> None:
        """Remove inputs that were taken up."""
        if ids:
            await self._disk.run(lambda: self._remove(ids))

    def _read(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                row = read_json(path)
                content = row.get("content") if isinstance(row, dict) else None
                if not isinstance(content, str):
                    raise FileUnusable(path, "it is no input")
                found.append((path.stem, content))
            except FileNotFoundError:
                continue
            except FileUnusable as error:
                if all(skipped.path != path for skipped in self.skipped):
                    _log.warning("left an input alone: %s", error)
                    self.skipped.append(Skipped(path, error.reason))
        return found

    def _remove(self, ids: Collection[str]) -> None:
        for name in ids:
            (self._folder / f"{name}.json").unlink(missing_ok=True)
        sync_folder(self._folder)
