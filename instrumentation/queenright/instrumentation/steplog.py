"""The step log: one JSON line a step, written so that a crash costs at most the line being written."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from queenright.instrumentation.dropped import DROPPED
from queenright.instrumentation.forks import after_fork_in_child
from queenright.instrumentation.harmless import notice

STORAGE_ENV: Final = "QUEENRIGHT_STORAGE"

_encode: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=str).encode


def step_log_path(storage: Path, session_id: str) -> Path:
    """Return where the step log of a session lies below ``storage``."""
    return storage / "sessions" / session_id / "logs" / "tool_logs.jsonl"


_second: tuple[int, str] = (-1, "")


def iso(time: float) -> str:
    """Return seconds since the epoch as ISO 8601 in UTC, to the millisecond."""
    global _second
    whole = int(time)
    second, text = _second
    if second != whole:  # the same for all that happens within a second
        text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        _second = (whole, text)
    return f"{text}.{int((time - whole) * 1000):03d}+00:00"


class StepLog:
    """
    Appends lines to one file.

    Each line is one ``write`` to a file opened for appending: lines of several threads and of forked
    children do not mix, and what was written survives a ``kill -9``.

    Raises:
        OSError: the file cannot be made; writing itself never raises.
    """

    def __init__(self, path: Path) -> None:
        # As private as the folder that it lies in: a runtime's sessions are their owner's alone.
        there = next((folder for folder in path.parents if folder.is_dir()), path.parent)
        shared = there.stat().st_mode & 0o077 if there.is_dir() else 0o077
        path.parent.mkdir(0o700 | shared, parents=True, exist_ok=True)
        self.path = path
        how = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(path, how, 0o600 | (shared & 0o044))
        size = os.fstat(self._file).st_size
        # A line torn by a crash ends here, or it would swallow the next one.
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        self._forked()
        after_fork_in_child(self._forked)

    def _forked(self) -> None:
        self._lock = threading.Lock()

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one line; a full disk costs the line, which is counted, and nothing else."""
        data = (_encode(line) + "\n").encode("utf-8", "replace")
        with self._lock:
            if self._file < 0:
                return
            if self._torn:
                data = b"\n" + data
            try:
                written = os.write(self._file, data)
            except OSError as error:
                written = 0
                notice("Queenright's step log %s cannot be written: %s", self.path, error)
            # Nothing written leaves the file as it was; half a line leaves it torn.
            self._torn = self._torn if written == 0 else written < len(data)
        if written < len(data):
            DROPPED.count("steps")

    def close(self) -> None:
        """Close the file; later lines are given up silently."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
