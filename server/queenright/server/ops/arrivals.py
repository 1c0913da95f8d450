"""
When what arrived: a small file beside the event log, which has the authors' clocks only.

The service writes down how long it has lived, how far the log was at which of its moments, and when it was
away or its clock jumped. With that, whoever reads the log again can time its events as they were timed when
they came. What is lost of the file makes that less exact, and nothing else.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from queenright.runtime.events import AgentEvent, EventType

_log = logging.getLogger(__name__)

NOTE_INTERVAL: Final = 10.0
"""So far apart are two notes of how far the log is, at most."""

_MAX_NOTES: Final = 50_000
"""The file is cut to what is young when it has grown by so many lines."""

_HEAD: Final = "lived {:020.6f}\n"
_LINE: Final = re.compile(r"(at|away|jump) (\d{1,11}\.\d+) ([!-~]{1,64})")
# These need not be in the log.
_TRANSIENT: Final = frozenset({EventType.LLM_TEXT_DELTA, EventType.CLIENT_OUTPUT_DELTA})


@dataclass(frozen=True, slots=True)
class ArrivalMark:
    """The event ``event_id``, and all before it in the log, had arrived at ``time``."""

    time: float
    event_id: str


@dataclass(frozen=True, slots=True)
class Gap:
    """From ``start`` to ``end`` nobody was there, or the clock went from the one to the other."""

    kind: Literal["away", "jump"]
    start: float
    end: float

    @property
    def time(self) -> float:
        """When it was over."""
        return self.end


Note = ArrivalMark | Gap


@dataclass(slots=True)
class ArrivalLog:
    """
    The file. Writing never fails: what cannot be written is logged, and missing then.

    Args:
        path: Where it is.
    """

    path: Path
    alive_until: float | None = None
    """Until when the service is known to have lived; None if no file says so."""
    _file: int | None = None
    _first: ArrivalMark | None = None
    _last: ArrivalMark | None = None
    _notes: int = 0
    _has_failed: bool = field(default=False)

    def read(self, since: float) -> list[Note]:
        """Return the notes that are not older than ``since``, in order, and learn ``lived``."""
        try:
            lines = self.path.read_text("ascii", "replace").splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            _log.warning("cannot read %s (%s): using the event log's times", self.path, error)
            return []
        if lines and (head := re.fullmatch(r"lived (\d{1,13}\.\d+)", lines[0])):
            self.alive_until = float(head[1])
        return [note for line in lines[1:] for note in _parse_note(line) if note.time >= since]

    def start(self, notes: Sequence[Note], now: float) -> None:
        """Write the file anew with ``notes``, and go on from there."""
        self.close()
        new = self.path.with_name(self.path.name + ".new")
        try:
            new.write_text(_HEAD.format(now) + "".join(f"{_format_note(note)}\n" for note in notes), "ascii")
            new.replace(self.path)
            self._file = os.open(self.path, os.O_WRONLY)
        except OSError as error:
            self._log_once(error)
        self.alive_until, self._notes = now, 0

    def record_events(self, events: Sequence[AgentEvent], now: float) -> None:
        """Take note of events that are in the log as of now. Quick, no I/O."""
        ids = [events[0], events[-1]] if events[0].type not in _TRANSIENT else list(events)
        kept = [event.id for event in ids if event.type not in _TRANSIENT]
        if not kept:
            return
        if self._first is None:
            self._first = ArrivalMark(now, kept[0])
        self._last = ArrivalMark(now, kept[-1])

    def write_alive(self, now: float, *, at_once: bool = False) -> None:
        """Write down that the service lives, and how far the log is if that was not done lately."""
        first, last = self._first, self._last
        if first is not None and last is not None and (at_once or now - first.time >= NOTE_INTERVAL):
            self._first = self._last = None
            self._append([first] if first == last else [first, last])
        self._write(_HEAD.format(now).encode(), 0)
        self.alive_until = now

    def record_clock_jump(self, before: float, now: float) -> None:
        """Write down that the clock jumped, or the host slept."""
        self.write_alive(before, at_once=True)
        self._append([Gap("jump", before, now)])
        self.write_alive(now)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, notes: Sequence[Note]) -> None:
        # The line break first: a line that was torn by a full disk spoils no other.
        self._write("".join(f"\n{_format_note(note)}" for note in notes).encode(), None)
        self._notes += len(notes)
        if self._notes > _MAX_NOTES and (newest := notes[-1].time):
            self.start(self.read(newest - 24 * 3600), self.alive_until or newest)

    def _write(self, text: bytes, offset: int | None) -> None:
        if self._file is None:
            return
        try:
            os.pwrite(self._file, text, os.fstat(self._file).st_size if offset is None else offset)
            self._has_failed = False
        except OSError as error:
            self._log_once(error)

    def _log_once(self, error: OSError) -> None:
        if not self._has_failed:
            _log.error("cannot write %s (%s): ages will be less exact after a restart", self.path, error)
        self._has_failed = True


def _format_note(note: Note) -> str:
    if isinstance(note, ArrivalMark):
        return f"at {note.time:.6f} {note.event_id}"
    return f"{note.kind} {note.end:.6f} {note.start:.6f}"


def _parse_note(line: str) -> Iterator[Note]:
    match = _LINE.fullmatch(line)
    if match is None:
        return
    kind, time, rest = match.groups()
    if kind == "at":
        yield ArrivalMark(float(time), rest)
    elif re.fullmatch(r"\d{1,11}\.\d+", rest):
        yield Gap("away" if kind == "away" else "jump", float(rest), float(time))
