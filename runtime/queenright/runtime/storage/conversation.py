"""
A conversation on disk: the messages of a node, one file per entry.

``parts/0000000001.json`` and so on hold the entries; ``cleared.json`` holds the number up to which all were
cleared. Files are written atomically, and durably before ``append`` returns. Unknown files are left alone and
reported.
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
    clip_entries,
    count_tokens,
    estimate_tokens,
    find_first_kept,
    group_exchanges,
    list_visible_messages,
)
from queenright.runtime.storage.files import (
    TEMP_SUFFIX,
    Disk,
    SkippedFile,
    UnusableFileError,
    encode_json,
    read_json,
    sync_folder,
    write_files,
    write_json,
)

__all__ = ["Conversation", "Draft", "Entry", "EntryKind", "SkippedFile", "estimate_tokens"]

_log = logging.getLogger(__name__)

_PART: Final = re.compile(r"(0[0-9]{9}|[1-9][0-9]{9,})\.json")
_MAX_ATTEMPTS: Final = 100
_OMISSION_NOTE: Final = "(earlier messages were omitted)"


class Conversation:
    """
    The messages of a node, oldest first. It supports one writer at a time, and readers at any time.

    Create it with ``open``.
    """

    def __init__(self, directory: Path, *, disk: Disk, clock: Clock) -> None:
        self._parts = directory / "parts"
        self._clear_file = directory / "cleared.json"
        self._disk = disk
        self._clock = clock
        self._entries: list[Entry] = []
        self._last_seq = 0
        self._skipped_files: list[SkippedFile] = []
        # Answers of concurrent tools are appended from several tasks.
        self._write_lock = asyncio.Lock()

    @classmethod
    def open(cls, directory: Path, *, disk: Disk, clock: Clock) -> Conversation:
        """
        Read a conversation; one that does not exist is empty. Blocks: call it through ``disk.run``.

        Unreadable files are skipped, logged and listed in ``skipped``.
        """
        conversation = cls(directory, disk=disk, clock=clock)
        conversation._load()
        return conversation

    @property
    def entries(self) -> Sequence[Entry]:
        """The entries, oldest first."""
        return tuple(self._entries)

    @property
    def last_seq(self) -> int:
        """The highest ``seq`` ever assigned, 0 before the first; it never decreases."""
        return self._last_seq

    @property
    def skipped_files(self) -> tuple[SkippedFile, ...]:
        """Files that ``open`` could not read, with reasons."""
        return tuple(self._skipped_files)

    @property
    def messages(self) -> list[Message]:
        """
        The messages to send to a model: each tool call is directly followed by its answer.

        A message with an unanswered call is omitted together with its other answers; see ``repair``.
        """
        return list_visible_messages(self._entries)

    async def append(self, *drafts: Draft) -> list[Entry]:
        """
        Append entries durably, in order.

        If cancelled, it raises after all of them have been added.

        Raises:
            OSError: The disk write failed; none was added.
            TypeError: ``data`` contains a value that is not JSON.
            ValueError: The kind does not match the message's role, or is SUMMARY, which only ``compact``
                creates.
        """
        if not drafts:
            return []
        if any(draft.kind is EntryKind.SUMMARY for draft in drafts):
            raise ValueError(
                "a summary cannot be appended, since it replaces all entries before it; use compact"
            )
        async with self._write_lock:
            at = self._clock()
            additions = [Entry.of(d, seq=self._last_seq + n, at=at) for n, d in enumerate(drafts, start=1)]
            # The numbers stay assigned even on failure: files with these numbers may exist.
            self._last_seq = additions[-1].seq
            await self._disk.run(partial(self._add, additions))
            return additions

    async def repair(self, text: str) -> list[Entry]:
        """
        Answer every unanswered call with ``text``, as an error of type "interrupted". Return the answers.

        Call it only when a conversation is resumed: while tools run, their answers are still to come.

        Raises:
            OSError: The disk write failed; none was added.
        """
        return await self.append(
            *(
                _make_interrupted_draft(exchange.head, call.id, call.name, text)
                for exchange in group_exchanges(self._entries)
                for call in exchange.unanswered_calls
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
        Replace the oldest entries with a summary if the conversation is too long; return their number.

        It is reduced to half of the limits, so that compaction is rare. A call stays together with its
        answers; the newest entry and unanswered calls are kept. If these are too long, their longest texts
        are clipped, on disk too; ``data`` never is.

        Args:
            max_tokens: Limit of the whole conversation, by ``estimate_tokens``.
            keep_messages: Limit of the number of messages; None is unlimited.
            summary: Summarizes the removed entries, oldest first, including an earlier summary; the result
                is clipped to an eighth of ``max_tokens``.

        Raises:
            OSError: The disk write failed; nothing was changed.
        """
        async with self._write_lock:
            items = group_exchanges(self._entries)
            count = sum(len(item.entries) for item in items)
            if count_tokens(items) <= max_tokens and (keep_messages is None or count <= keep_messages):
                return 0
            reserve = max_tokens // 8
            position = find_first_kept(
                items,
                max_tokens=max_tokens // 2 - reserve,
                max_entries=None if keep_messages is None else max(keep_messages // 2, 1),
            )
            removals = _sort_entries(items[:position])
            if all(entry.kind is EntryKind.SUMMARY for entry in removals):
                removals, kept_entries = [], _sort_entries(items)
                summary_entry = None
            else:
                kept_entries = _sort_entries(items[position:])
                text = clip(summary(removals) or _OMISSION_NOTE, max(reserve - 4, 1) * 4)
                summary_entry = self._make_summary_entry(removals, kept_entries, text)
            await self._disk.run(
                partial(self._shorten, removals, _clip_to_limit(summary_entry, kept_entries, max_tokens))
            )
            return len(removals)

    async def rewind(self, seq: int) -> int:
        """
        Remove the entries after ``seq``, and return their number.

        A summary that covers entries after ``seq`` is removed as a whole. If the process is killed, the
        conversation is longer than requested, but has no gap.

        Raises:
            OSError: The disk write failed.
        """
        async with self._write_lock:
            removals = [entry for entry in self._entries if entry.seq > seq]
            if removals:
                await self._disk.run(partial(self._remove_newest, removals))
            return len(removals)

    async def clear(self) -> None:
        """
        Remove all entries; ``last_seq`` stays. If the process is killed, all or none are removed.

        Raises:
            OSError: The disk write failed; all or none were removed.
        """
        async with self._write_lock:
            await self._disk.run(self._remove_all)

    def _make_summary_entry(
        self, removals: Sequence[Entry], kept_entries: Sequence[Entry], text: str
    ) -> Entry:
        """
        Create the summary, with the number and file of the newest removed entry before all kept ones.

        One rename therefore puts it in place, and it sorts first.
        """
        first_kept_seq = min(entry.seq for entry in kept_entries)
        last_removed_seq = max(entry.seq for entry in removals if entry.seq < first_kept_seq)
        draft = Draft(
            kind=EntryKind.SUMMARY,
            message=Message(role="user", content=text),
            # A late answer may be removed although its number is higher than those of kept entries.
            data={"through": last_removed_seq, "last_seq": self._last_seq},
        )
        return Entry.of(draft, seq=last_removed_seq, at=self._clock())

    # The methods below block and run in a thread. They change the state in memory as soon as it is on disk,
    # even if the caller was cancelled.

    def _add(self, additions: Sequence[Entry]) -> None:
        write_files({self._get_path(entry.seq): encode_json(entry.to_dict()) for entry in additions})
        self._entries = [*self._entries, *additions]

    def _shorten(self, removals: Sequence[Entry], kept_entries: Sequence[Entry]) -> None:
        current_entries = {entry.seq: entry for entry in self._entries}
        # The summary has the lowest number: it is written before the entries it replaces are removed.
        changes = [entry for entry in kept_entries if current_entries.get(entry.seq) is not entry]
        write_files({self._get_path(entry.seq): encode_json(entry.to_dict()) for entry in changes})
        self._entries = list(kept_entries)
        numbers = {entry.seq for entry in kept_entries}
        self._remove_files(entry.seq for entry in removals if entry.seq not in numbers)

    def _remove_newest(self, removals: Sequence[Entry]) -> None:
        for entry in sorted(removals, key=lambda entry: entry.seq, reverse=True):
            self._get_path(entry.seq).unlink(missing_ok=True)
        self._entries = [entry for entry in self._entries if entry not in removals]
        sync_folder(self._parts)

    def _remove_all(self) -> None:
        if self._last_seq == 0:
            return
        write_json(self._clear_file, {"through": self._last_seq})
        removals, self._entries = self._entries, []
        self._remove_files(entry.seq for entry in removals)

    def _load(self) -> None:
        for _ in range(_MAX_ATTEMPTS):
            self._skipped_files = []
            with suppress(FileNotFoundError):
                self._read_all()
                break
        for skipped_file in self._skipped_files:
            _log.warning("skipped a file of a conversation: %s: %s", skipped_file.path, skipped_file.reason)

    def _read_all(self) -> None:
        """
        Read the current entries, newest first, up to a summary.

        Raises:
            FileNotFoundError: Another process shortened the conversation in the meantime.
        """
        clear_seq = self._read_cleared()
        numbers = self._list_numbers()
        self._last_seq = max(clear_seq, *numbers, 0)
        entries: list[Entry] = []
        for seq in sorted(numbers, reverse=True):
            if seq <= clear_seq:
                break
            if (entry := self._read_entry(seq)) is not None:
                entries.append(entry)
                if entry.kind is EntryKind.SUMMARY:
                    clear_seq = seq - 1
                    self._last_seq = max(self._last_seq, _to_entry_number(entry.data.get("last_seq")))
                    break
        self._entries = entries[::-1]
        # Remove the files that a killed writer had marked as removed.
        self._remove_files(seq for seq in numbers if seq <= clear_seq)

    def _read_cleared(self) -> int:
        try:
            row = read_json(self._clear_file)
        except FileNotFoundError:
            return 0
        except UnusableFileError as error:
            self._skip_file(self._clear_file, error.reason)
            return 0
        last_cleared = _to_entry_number(row.get("through")) if isinstance(row, Mapping) else 0
        if not last_cleared:
            self._skip_file(self._clear_file, "it contains no entry number")
        return last_cleared

    def _list_numbers(self) -> list[int]:
        """Return the numbers in the file names of entries."""
        try:
            names = sorted(os.listdir(self._parts))
        except FileNotFoundError:
            return []
        except OSError as error:
            self._skip_file(self._parts, error.strerror or str(error))
            return []
        numbers = []
        for name in names:
            if match := _PART.fullmatch(name):
                numbers.append(int(match[1]))
            elif not name.endswith(TEMP_SUFFIX):
                self._skip_file(self._parts / name, "its name is not that of an entry")
        return numbers

    def _read_entry(self, seq: int) -> Entry | None:
        path = self._get_path(seq)
        try:
            entry = Entry.from_dict(read_json(path))
        except FileNotFoundError:
            if not path.is_symlink():
                raise
            self._skip_file(path, "it is a broken link")
            return None
        except UnusableFileError as error:
            self._skip_file(path, error.reason)
            return None
        except ValueError as error:
            self._skip_file(path, str(error))
            return None
        if entry.seq != seq:
            self._skip_file(path, f"it contains entry {entry.seq}")
            return None
        return entry

    def _skip_file(self, path: Path, reason: str) -> None:
        self._skipped_files.append(SkippedFile(path, reason))

    def _remove_files(self, numbers: Iterable[int]) -> None:
        """Remove the files of removed entries; failures do not matter, since the entries no longer count."""
        has_removed = False
        for seq in numbers:
            with suppress(OSError):
                self._get_path(seq).unlink()
                has_removed = True
        if has_removed:
            with suppress(OSError):
                sync_folder(self._parts)

    def _get_path(self, seq: int) -> Path:
        return self._parts / f"{seq:010d}.json"


def list_conversations(folder: Path) -> list[str]:
    """Return the names of the conversations in a session's folder. Blocks."""
    try:
        return sorted(path.name for path in folder.iterdir() if (path / "parts").is_dir())
    except FileNotFoundError:
        return []


def read_last_seq(directory: Path) -> int:
    """Return the number of a conversation's newest entry, 0 if empty. Blocks; reads no entry."""
    names = (_PART.fullmatch(path.name) for path in (directory / "parts").iterdir())
    return max((int(match[1]) for match in names if match), default=0)


def _sort_entries(items: Iterable[Exchange]) -> list[Entry]:
    return sorted((entry for item in items for entry in item.entries), key=lambda entry: entry.seq)


def _to_entry_number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _clip_to_limit(summary: Entry | None, kept_entries: Sequence[Entry], max_tokens: int) -> list[Entry]:
    """Return the summary and the kept entries, clipped if they exceed ``max_tokens``."""
    leading_entries = [] if summary is None else [summary]
    remaining_tokens = max_tokens - estimate_tokens(entry.message for entry in leading_entries)
    return [*leading_entries, *clip_entries(kept_entries, remaining_tokens)]


def _make_interrupted_draft(caller: Entry, call_id: str, tool: str, text: str) -> Draft:
    data = {
        "outcome": "error",
        "error_type": "interrupted",
        "tool": tool,
        "call_id": call_id,
        "turn": caller.data.get("turn"),
        ANSWERS: caller.seq,
    }
    message = Message(role="tool", content=text, tool_call_id=call_id)
    return Draft(kind=EntryKind.TOOL, message=message, visit_id=caller.visit_id, data=data)
