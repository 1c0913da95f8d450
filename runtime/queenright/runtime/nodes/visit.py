"""A visit of a node: its state on disk and in memory, and the guard that observes it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from queenright.runtime.events import EventType
from queenright.runtime.llm.model import Message, ToolCall
from queenright.runtime.nodes.cursor import NodeCursor
from queenright.runtime.nodes.node_guard import Guard, GuardFinding
from queenright.runtime.nodes.reporting import Reporter
from queenright.runtime.storage.conversation import Conversation
from queenright.runtime.storage.entries import Draft, Entry, EntryKind
from queenright.runtime.storage.files import Disk, UnusableFileError, read_json, write_json

_log = logging.getLogger(__name__)

CURSOR_FILE: Final = "cursor.json"
INTERRUPTED: Final = (
    "error: interrupted before it answered; it may or may not have taken effect: check before doing it again"
)


class VisitStoppedError(Exception):
    """Raised inside a turn when the guard stops the visit."""

    def __init__(self, finding: GuardFinding) -> None:
        super().__init__(finding.evidence)
        self.finding = finding


class Visit:
    """
    One visit of a node: its conversation, its cursor and the findings of its guard.

    Everything is first appended to the conversation and then applied to the cursor, both live and after a
    restart. The guard observes what the cursor records, in the same order in both cases.
    """

    def __init__(
        self,
        node_id: str,
        *,
        conversation: Conversation,
        folder: Path,
        disk: Disk,
        reporter: Reporter,
        guard: Guard | None,
    ) -> None:
        self.cursor = NodeCursor(visit_id="")
        self.conversation = conversation
        self.stop: GuardFinding | None = None
        """The finding for which the guard stops the visit."""
        self._node_id = node_id
        self._file = folder / CURSOR_FILE
        self._disk = disk
        self._reporter = reporter
        self._guard = guard
        self._has_changes = False
        self._shown_count = 0
        self._warnings: list[GuardFinding] = []

    async def open(self, visit_id: str) -> None:
        """Restore the visit from disk; the guard observes its earlier events again."""
        self.cursor = await self._disk.run(lambda: self._read(visit_id))
        last_seq = self.cursor.seq
        for entry in self.conversation.entries:
            if entry.seq > last_seq:
                self._fold_entry(entry)
        self._notify_guard()

    async def append(self, *drafts: Draft) -> None:
        """Append entries to the conversation, and apply them to the cursor."""
        for entry in await self.conversation.append(*drafts):
            self._fold_entry(entry)
        self._notify_guard()

    async def repair(self) -> None:
        """Answer the calls that were left unanswered by a kill or a pause with an error."""
        for entry in await self.conversation.repair(INTERRUPTED):
            self._fold_entry(entry)
        self._notify_guard()

    async def save(self) -> None:
        """Write the cursor, for changes that are in no entry."""
        row = self.cursor.model_dump()
        self._has_changes = False
        await self._disk.run(lambda: write_json(self._file, row))
        self._notify_guard()

    async def save_before_compaction(self) -> None:
        """Write the cursor if it depends on entries that compaction may remove."""
        if self._has_changes:
            await self.save()

    def make_draft(self, kind: EntryKind, message: Message, data: Mapping[str, Any]) -> Draft:
        """Create a draft entry of this visit."""
        return Draft(kind=kind, message=message, visit_id=self.cursor.visit_id, data=data)

    def list_unanswered_calls(self) -> list[ToolCall]:
        """Return the calls of the newest turn without an answer."""
        for entry in reversed(self.conversation.entries):
            if entry.kind is EntryKind.ASSISTANT and entry.visit_id == self.cursor.visit_id:
                return [call for call in entry.message.tool_calls if call.id in self.cursor.unanswered]
        return []

    def list_new_warnings(self) -> list[GuardFinding]:
        """Return the guard's findings that the model was not warned of."""
        return [finding for finding in self._warnings if finding.label not in self.cursor.warned]

    async def release(self) -> None:
        """Continue a visit that the guard stopped: earlier events no longer count."""
        self.stop = None
        self._warnings.clear()
        self.cursor.guard.clear()
        self.cursor.warned.clear()
        if self._guard is not None:
            self._guard.reset()
        await self.save()

    def raise_if_stopped(self) -> None:
        """
        Check that the guard does not stop the visit.

        Raises:
            VisitStoppedError: The guard stops the visit.
        """
        if self.stop is not None:
            raise VisitStoppedError(self.stop)

    def _read(self, visit_id: str) -> NodeCursor:
        try:
            cursor = NodeCursor.model_validate(read_json(self._file))
        except FileNotFoundError:
            return NodeCursor(visit_id=visit_id)
        except (UnusableFileError, ValueError) as error:
            _log.warning("rebuilding the cursor of node %s from its conversation: %s", self._node_id, error)
            return NodeCursor(visit_id=visit_id)
        if cursor.visit_id != visit_id or cursor.seq > self.conversation.last_seq:
            return NodeCursor(visit_id=visit_id, taken=cursor.taken)
        return cursor

    def _fold_entry(self, entry: Entry) -> None:
        self.cursor.fold(entry)
        self._has_changes = True

    def _notify_guard(self) -> None:
        """Show the guard the new events; after a restart, all events that the cursor recorded."""
        new_count = self.cursor.noted - self._shown_count
        self._shown_count = self.cursor.noted
        if self._guard is None or new_count <= 0:
            return
        for row in self.cursor.guard[-new_count:]:
            event = self._reporter.event(
                EventType(row["type"]), row["data"], node_id=self._node_id, time=row["time"]
            )
            try:
                finding = self._guard.observe(event)
            except Exception:
                _log.exception("the guard of node %s failed", self._node_id)
                continue
            if finding is None:
                continue
            if finding.stop:
                self.stop = self.stop or finding
            elif all(finding.label != warning.label for warning in self._warnings):
                self._warnings.append(finding)
