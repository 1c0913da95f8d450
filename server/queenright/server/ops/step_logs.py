"""Follow the step logs of workers that send no telemetry, and convert new lines into events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from queenright.health.monitoring.steplog import StepLogReader
from queenright.health.store.store import StoreError
from queenright.runtime.events import AgentEvent

_log = logging.getLogger(__name__)

_POLL_SECONDS = 1.0

Ingest = Callable[[Sequence[AgentEvent]], Awaitable[None]]


class StepLogs:
    """
    Follows the step logs below the given folders.

    Args:
        folders: Folders with ``sessions/{id}/logs/tool_logs.jsonl``.
        ingest: Stores and processes events. It is retried after a `StoreError`.
        on_skipped: Called with the number of new lines that are not valid steps.
    """

    def __init__(self, folders: Sequence[Path], *, ingest: Ingest, on_skipped: Callable[[int], None]) -> None:
        self._folders = folders
        self._ingest = ingest
        self._on_skipped = on_skipped
        self._readers: dict[Path, StepLogReader] = {}
        self._unstored_events: dict[Path, list[AgentEvent]] = {}
        self._failing_paths: set[Path] = set()

    async def run(self) -> None:
        """Read new lines every second until cancelled. An unreadable log does not affect the others."""
        while True:
            for path in await asyncio.to_thread(self._list_logs):
                await self._follow(self._readers.setdefault(path, StepLogReader(path)))
            await asyncio.sleep(_POLL_SECONDS)

    def _list_logs(self) -> list[Path]:
        path_lists = (folder.glob("sessions/*/logs/tool_logs.jsonl") for folder in self._folders)
        return [path for paths in path_lists for path in sorted(paths)]

    async def _follow(self, reader: StepLogReader) -> None:
        path, skipped_before = reader.path, reader.skipped_lines
        try:
            # Store the events of an earlier failure first, because the reader has moved past them.
            while events := self._unstored_events.get(path) or await asyncio.to_thread(reader.read):
                self._unstored_events[path] = events
                await self._ingest(events)
                del self._unstored_events[path]
        except (OSError, StoreError) as error:
            if path not in self._failing_paths:
                _log.error("cannot follow the step log %s, retrying: %s", path, error)
            self._failing_paths.add(path)
        else:
            self._failing_paths.discard(path)
        if reader.skipped_lines > skipped_before:
            self._on_skipped(reader.skipped_lines - skipped_before)
