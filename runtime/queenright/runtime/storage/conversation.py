"""
A conversation on disk: what was said in a node, one file an entry.

``parts/0000000001.json`` and on hold the entries; ``cleared.json`` says up to which everything was
forgotten. A file is there whole or not at all, and on the disk before ``append`` returns. Whatever else lies
there is left alone and reported.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from queenright.runtime.events import Clock
from queenright.runtime.llm.model import Message
from queenright.runtime.storage.entries import Draft, Entry, EntryKind
from queenright.runtime.storage.exchanges import (
    ANSWERS,
    Exchange,
    clip,
    clipped_to,
    estimated_tokens,
    exchanges,
    first_kept,
    shown,
    tokens,
)
from queenright.runtime.storage.files import (
    ASIDE,
    Disk,
    Skipped,
    UnusableFileError,
    json_bytes,
    read_json,
    sync_folder,
    write_files,
    write_json,
)

__all__ = ["Conversation", "Draft", "Entry", "EntryKind", "Skipped", "estimated_tokens"]

_log = logging.getLogger(__name__)

_PART: Final = re.compile(r"(0[0-9]{9}|[1-9][0-9]{9,})\.json")
_TRIES: Final = 100
_NOTHING: Final = "(what was said before was left out)"


class Conversation:
    """
    What was said, oldest first. It has one writer at a time; opening it to read does not disturb the writer.

    Made by ``open``.
    """

    def __init__(self, directory: Path, *, disk: Disk, clock: Clock) -> None:
        self._parts = directory / "parts"
        self._cleared = directory / "cleared.json"
        self._disk = disk
        self._clock = clock
        self._entries: list[Entry] = []
        self._last_seq = 0
        self._skipped: list[Skipped] = []
        # Answers of tools that run side by side are appended from several tasks.
        self._writing = asyncio.Lock()

    @classmethod
    def open(cls, directory: Path, *, disk: Disk, clock: Clock) -> Conversation:
        """
        Read a conversation; one that does not exist is empty. Blocks: call it through ``disk.run``.

        Files that cannot be read are left out, logged, and listed in ``skipped``.
        """
        conversation = cls(directory, disk=disk, clock=clock)
        conversation._load()
        return conversation

    @property
    def entries(self) -> Sequence[Entry]:
        """What was said, oldest first."""
        return tuple(self._entries)

    @property
    def last_seq(self) -> int:
        """The highest ``seq`` that was ever given, 0 before the first; it never goes down."""
        return self._last_seq

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """What ``open`` could not read, and why."""
        return tuple(self._skipped)

    @property
    def messages(self) -> list[Message]:
        """
        What a model may be shown: each tool call answered once, directly behind it, and no other answers.

        A message of which a call was never answered is left out with the answers it has; see ``repair``.
        """
        return shown(self._entries)

    async def append(self, *drafts: Draft) -> list[Entry]:
        """
        Add entries, in order; on return they are on the disk.

        Cancelled, it has added all of them by the time it raises.

        Raises:
            OSError: The disk refused; none was added.
            TypeError: ``data`` holds what is no JSON value.
            ValueError: The kind does not go with the message's role, or is SUMMARY: ``compact`` alone makes
                those.
        """
        if not drafts:
            return []
        if any(draft.kind is EntryKind.SUMMARY for draft in drafts):
            raise ValueError("A summary cannot be appended: it would stand for all before it; use compact.")
        async with self._writing:
            at = self._clock()
            added = [Entry.of(d, seq=self._last_seq + n, at=at) for n, d in enumerate(drafts, start=1)]
            # Given for good: a file of this number may be there even if the disk refuses.
            self._last_seq = added[-1].seq
            await self._disk.run(partial(self._add, added))
            return added

    async def repair(self, text: str) -> list[Entry]:
        """
        Answer every call that was never answered with ``text``, as an error of the type "interrupted".

        For when a conversation is taken up again; while tools still run, their answers are on the way.
        Returns the answers.

        Raises:
            OSError: The disk refused; none was added.
        """
        return await self.append(
            *(
                _interrupted(exchange.head, call.id, call.name, text)
                for exchange in exchanges(self._entries)
                for call in exchange.unanswered
            )
        )

    async def compact(
        self,
        *,
        max_tokens: int,
        keep_messages: int | None = None,
        summary: Callable[[Sequence[Entry]], str],
    ) -> int:
        """
        Put one summary in the place of the oldest entries, if they are too many; return how many those were.

        Goes down to half of what is allowed, so that it happens seldom. A call and its answers stay
        together, the newest entry stays, and calls that wait for their answers do. If these alone are too
        long, their longest texts are clipped, on the disk too; ``data`` never is.

        Args:
            max_tokens: How long all may be, by ``estimated_tokens``.
            keep_messages: How many there may be; None is any number.
            summary: Is given the entries that go, oldest first, an earlier summary among them, and returns
                what shall stand for them; clipped to an eighth of ``max_tokens``.

        Raises:
            OSError: The disk refused; nothing was changed.
        """
        async with self._writing:
            items = exchanges(self._entries)
            count = sum(len(item.entries) for item in items)
            if tokens(items) <= max_tokens and (keep_messages is None or count <= keep_messages):
                return 0
            reserve = max_tokens // 8
            position = first_kept(
                items,
                max_tokens=max_tokens // 2 - reserve,
                max_entries=None if keep_messages is None else max(keep_messages // 2, 1),
            )
            gone = _entries(items[:position])
            if all(entry.kind is EntryKind.SUMMARY for entry in gone):
                gone, kept = [], _entries(items)
                new = None
            else:
                kept = _entries(items[position:])
                new = self._summarised(gone, kept, clip(summary(gone) or _NOTHING, max(reserve - 4, 1) * 4))
            await self._disk.run(partial(self._shorten, gone, _within(new, kept, max_tokens)))
            return len(gone)

    async def rewind(self, seq: int) -> int:
        """
        Forget what was said after ``seq``, and return how many entries that were.

        What a summary stands for cannot be taken apart: one that reaches beyond ``seq`` goes whole. A kill
        leaves a conversation that is longer than that, never one with a hole.

        Raises:
            OSError: The disk refused.
        """
        async with self._writing:
            gone = [entry for entry in self._entries if entry.seq > seq]
            if gone:
                await self._disk.run(partial(self._take_back, gone))
            return len(gone)

    async def clear(self) -> None:
        """
        Forget everything; ``last_seq`` stays. A kill leaves all or nothing.

        Raises:
            OSError: The disk refused; nothing was forgotten, or all of it was.
        """
        async with self._writing:
            await self._disk.run(self._forget)

    def _summarised(self, gone: Sequence[Entry], kept: Sequence[Entry], text: str) -> Entry:
        """
        Return the summary: it takes the number, and the file, of the newest entry before all that stay.

        So one rename puts it there, and it sorts first without more ado.
        """
        begin = min(entry.seq for entry in kept)
        through = max(entry.seq for entry in gone if entry.seq < begin)
        draft = Draft(
            kind=EntryKind.SUMMARY,
            message=Message(role="user", content=text),
            # An answer that came late may go though it has a higher number than all that stay.
            data={"through": through, "last_seq": self._last_seq},
        )
        return Entry.of(draft, seq=through, at=self._clock())

    # What follows blocks and runs in a thread. It changes what is in memory as soon as the disk has it,
    # whether or not the caller still waits.

    def _add(self, added: Sequence[Entry]) -> None:
        write_files({self._path(entry.seq): json_bytes(entry.to_dict()) for entry in added})
        self._entries = [*self._entries, *added]

    def _shorten(self, gone: Sequence[Entry], staying: Sequence[Entry]) -> None:
        known = {entry.seq: entry for entry in self._entries}
        # The summary has the lowest number: written first, it is there before what it stands for goes.
        changed = [entry for entry in staying if known.get(entry.seq) is not entry]
        write_files({self._path(entry.seq): json_bytes(entry.to_dict()) for entry in changed})
        self._entries = list(staying)
        kept = {entry.seq for entry in staying}
        self._remove(entry.seq for entry in gone if entry.seq not in kept)

    def _take_back(self, gone: Sequence[Entry]) -> None:
        for entry in sorted(gone, key=lambda entry: entry.seq, reverse=True):
            self._path(entry.seq).unlink(missing_ok=True)
        self._entries = [entry for entry in self._entries if entry not in gone]
        sync_folder(self._parts)

    def _forget(self) -> None:
        if self._last_seq == 0:
            return
        write_json(self._cleared, {"through": self._last_seq})
        gone, self._entries = self._entries, []
        self._remove(entry.seq for entry in gone)

    def _load(self) -> None:
        for _ in range(_TRIES):
            self._skipped = []
            with suppress(FileNotFoundError):
                self._read_all()
                break
        for skipped in self._skipped:
            _log.warning("left out of a conversation: %s: %s", skipped.path, skipped.reason)

    def _read_all(self) -> None:
        """
        Read every entry that counts, the newest first: a summary says that none before it does.

        Raises:
            FileNotFoundError: The writer, another process, shortened it meanwhile.
        """
        cleared = self._read_cleared()
        numbers = self._numbers()
        self._last_seq = max(cleared, *numbers, 0)
        entries: list[Entry] = []
        for seq in sorted(numbers, reverse=True):
            if seq <= cleared:
                break
            if (entry := self._read(seq)) is not None:
                entries.append(entry)
                if entry.kind is EntryKind.SUMMARY:
                    cleared = seq - 1
                    self._last_seq = max(self._last_seq, _number(entry.data.get("last_seq")))
                    break
        self._entries = entries[::-1]
        # A kill came between the word that they are gone and their going.
        self._remove(seq for seq in numbers if seq <= cleared)

    def _read_cleared(self) -> int:
        try:
            row = read_json(self._cleared)
        except FileNotFoundError:
            return 0
        except UnusableFileError as error:
            self._skip(self._cleared, error.reason)
            return 0
        through = _number(row.get("through")) if isinstance(row, Mapping) else 0
        if not through:
            self._skip(self._cleared, "it does not say up to which entry")
        return through

    def _numbers(self) -> list[int]:
        """Return the numbers of what is named like an entry."""
        try:
            names = sorted(os.listdir(self._parts))
        except FileNotFoundError:
            return []
        except OSError as error:
            self._skip(self._parts, error.strerror or str(error))
            return []
        numbers = []
        for name in names:
            if match := _PART.fullmatch(name):
                numbers.append(int(match[1]))
            elif not name.endswith(ASIDE):
                self._skip(self._parts / name, "it is not named like an entry")
        return numbers

    def _read(self, seq: int) -> Entry | None:
        path = self._path(seq)
        try:
            entry = Entry.from_dict(read_json(path))
        except FileNotFoundError:
            if not path.is_symlink():
                raise
            self._skip(path, "it is a link to nothing")
            return None
        except UnusableFileError as error:
            self._skip(path, error.reason)
            return None
        except ValueError as error:
            self._skip(path, str(error))
            return None
        if entry.seq != seq:
            self._skip(path, f"it holds entry {entry.seq}")
            return None
        return entry

    def _skip(self, path: Path, reason: str) -> None:
        self._skipped.append(Skipped(path, reason))

    def _remove(self, numbers: Iterable[int]) -> None:
        """Remove files of entries that no longer count; one that cannot be removed does not count either."""
        removed = False
        for seq in numbers:
            with suppress(OSError):
                self._path(seq).unlink()
                removed = True
        if removed:
            with suppress(OSError):
                sync_folder(self._parts)

    def _path(self, seq: int) -> Path:
        return self._parts / f"{seq:010d}.json"


def conversations_in(folder: Path) -> list[str]:
    """Return the names of the conversations in a session's folder of them. Blocks."""
    try:
        return sorted(path.name for path in folder.iterdir() if (path / "parts").is_dir())
    except FileNotFoundError:
        return []


def last_seq(directory: Path) -> int:
    """Return the number of the newest entry of a conversation, 0 without any. Blocks; reads no entry."""
    names = (_PART.fullmatch(path.name) for path in (directory / "parts").iterdir())
    return max((int(match[1]) for match in names if match), default=0)


def _entries(items: Iterable[Exchange]) -> list[Entry]:
    return sorted((entry for item in items for entry in item.entries), key=lambda entry: entry.seq)


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _within(summary: Entry | None, kept: Sequence[Entry], max_tokens: int) -> list[Entry]:
    """Return what stays, the new summary first, the rest clipped if all is longer than ``max_tokens``."""
    first = [] if summary is None else [summary]
    room = max_tokens - estimated_tokens(entry.message for entry in first)
    return [*first, *clipped_to(kept, room)]


def _interrupted(asked: Entry, call_id: str, tool: str, text: str) -> Draft:
    data = {
        "outcome": "error",
        "error_type": "interrupted",
        "tool": tool,
        "call_id": call_id,
        "turn": asked.data.get("turn"),
        ANSWERS: asked.seq,
    }
    message = Message(role="tool", content=text, tool_call_id=call_id)
    return Draft(kind=EntryKind.TOOL, message=message, visit_id=asked.visit_id, data=data)
