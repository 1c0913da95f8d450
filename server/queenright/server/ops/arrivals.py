"""
Record the arrival times of logged events in a file, because the event log has only the senders' times.

The service records the last time at which it ran, the position of the log at certain times, outages, and
clock jumps. After a restart, events are replayed with the times at which they arrived. If a part of the
file is lost, replayed times are less exact; nothing else depends on it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from queenright.runtime.events import TRANSIENT, AgentEvent

_log = logging.getLogger(__name__)

NOTE_INTERVAL_SECONDS: Final = 10.0
"""Minimum seconds between notes of the log's position. Gaps are written immediately."""

REBUILD_SECONDS: Final = 24 * 3600
"""
Seconds of the event log that are replayed at start, if there is no snapshot of the workers.

Of sessions that started earlier, only the events that still matter are read.
"""

_MAX_NOTES: Final = 50_000
"""Number of new lines after which old ones are removed from the file."""

_HEAD_FORMAT: Final = "alive_until {:020.6f}\n"
"""The first line. Its width is fixed, because the line is overwritten in place."""
_NOTE_PATTERN: Final = re.compile(r"(at|away|jump) (\d{1,11}\.\d+) ([!-~]{1,64})")


@dataclass(frozen=True, slots=True)
class ArrivalMark:
    """States that the event ``event_id`` and all earlier ones in the log had arrived by ``time``."""

    time: float
    event_id: str


@dataclass(frozen=True, slots=True)
class Gap:
    """A period in which the service was down, nothing could arrive, or the clock jumped."""

    kind: Literal["away", "jump"]
    start: float
    end: float

    @property
    def time(self) -> float:
        """The end of the gap."""
        return self.end


Note = ArrivalMark | Gap


@dataclass(slots=True)
class ArrivalLog:
    """
    The file of arrival times. Writing never raises: errors are logged, and their data is lost.

    Args:
        path: The file's path.
    """

    path: Path
    alive_until: float | None = field(default=None, init=False)
    """The last time at which the service is known to have run; None if unknown."""
    _file: int | None = field(default=None, init=False)
    _first: ArrivalMark | None = field(default=None, init=False)
    _last: ArrivalMark | None = field(default=None, init=False)
    _notes: int = field(default=0, init=False)
    _has_failed: bool = field(default=False, init=False)

    def read(self, since: float) -> list[Note]:
        """Return the notes since a time, in order, and set ``alive_until``."""
        try:
            lines = self.path.read_text("ascii", "replace").splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            _log.warning("cannot read %s (%s): using the event log's times", self.path, error)
            return []
        if lines and (head := re.fullmatch(r"alive_until (\d{1,13}\.\d+)", lines[0])):
            self.alive_until = float(head[1])
        return [note for line in lines[1:] if (note := _parse_note(line)) and note.time >= since]

    def start(self, notes: Sequence[Note], now: float) -> None:
        """Rewrite the file with ``notes``, and open it for appending."""
        new_path = self.path.with_name(self.path.name + ".new")
        try:
            new_path.write_text(
                _HEAD_FORMAT.format(now) + "".join(f"{_format_note(note)}\n" for note in notes), "ascii"
            )
            new_path.replace(self.path)
            file = os.open(self.path, os.O_WRONLY)
        except OSError as error:
            self._log_once(error)
        else:
            self.close()
            self._file = file
        self.alive_until, self._notes = now, 0

    def record_events(self, events: Sequence[AgentEvent], now: float) -> None:
        """Record events that are in the log now, without I/O."""
        first_event = next((event for event in events if event.type not in TRANSIENT), None)
        if first_event is None:
            return
        last_event = next(event for event in reversed(events) if event.type not in TRANSIENT)
        if self._first is None:
            self._first = ArrivalMark(now, first_event.id)
        self._last = ArrivalMark(now, last_event.id)

    def write_alive(self, now: float, *, at_once: bool = False) -> None:
        """Write that the service is running and, if due, the position of the log."""
        first_mark, last_mark = self._first, self._last
        if (
            first_mark is not None
            and last_mark is not None
            and (at_once or now - first_mark.time >= NOTE_INTERVAL_SECONDS)
        ):
            self._first = self._last = None
            self._append([first_mark] if first_mark == last_mark else [first_mark, last_mark])
        self._write(_HEAD_FORMAT.format(now).encode(), 0)
        self.alive_until = now

    def record_gap(self, gap: Gap) -> None:
        """Write a gap."""
        self.write_alive(gap.start, at_once=True)
        self._append([gap])
        self.write_alive(gap.end)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, notes: Sequence[Note]) -> None:
        # Write the line break first, so that a line truncated by a full disk does not damage the next one.
        self._write("".join(f"\n{_format_note(note)}" for note in notes).encode(), None)
        self._notes += len(notes)
        if self._notes > _MAX_NOTES:
            newest = notes[-1].time
            self.start(self.read(newest - REBUILD_SECONDS), self.alive_until or newest)

    def _write(self, data: bytes, offset: int | None) -> None:
        if self._file is None:
            return
        try:
            os.pwrite(self._file, data, os.fstat(self._file).st_size if offset is None else offset)
            self._has_failed = False
        except OSError as error:
            self._log_once(error)

    def _log_once(self, error: OSError) -> None:
        if not self._has_failed:
            _log.error(
                "cannot write %s (%s): ages will be less exact after a restart; check the folder and free "
                "space on its disk",
                self.path,
                error,
            )
        self._has_failed = True


def _format_note(note: Note) -> str:
    if isinstance(note, ArrivalMark):
        return f"at {note.time:.6f} {note.event_id}"
    return f"{note.kind} {note.end:.6f} {note.start:.6f}"


def _parse_note(line: str) -> Note | None:
    match = _NOTE_PATTERN.fullmatch(line)
    if match is None:
        return None
    kind, time, last_field = match.groups()
    if kind == "at":
        return ArrivalMark(float(time), last_field)
    if re.fullmatch(r"\d{1,11}\.\d+", last_field):
        return Gap("away" if kind == "away" else "jump", float(last_field), float(time))
    return None
