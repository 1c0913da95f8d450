"""The step log: one JSON line per step. A crash loses at most the line being written."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from queenright.instrumentation.drop_counter import DROPPED
from queenright.instrumentation.error_guard import warn_once
from queenright.instrumentation.forks import after_fork_in_child

STORAGE_ENV: Final = "QUEENRIGHT_STORAGE"

_encode: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=str).encode


def get_step_log_path(storage: Path, session_id: str) -> Path:
    """Return the path of a session's step log below ``storage``."""
    return storage / "sessions" / session_id / "logs" / "tool_logs.jsonl"


_cached_second: tuple[int, str] = (-1, "")


def format_iso(time: float) -> str:
    """Format seconds since the epoch as ISO 8601 in UTC, with milliseconds."""
    global _cached_second
    whole_seconds = int(time)
    second, text = _cached_second
    if second != whole_seconds:  # cached per second
        text = datetime.fromtimestamp(whole_seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        _cached_second = (whole_seconds, text)
    return f"{text}.{int((time - whole_seconds) * 1000):03d}+00:00"


class StepLog:
    """
    Appends lines to one file.

    Each line is one ``write`` in append mode, so lines of several threads and forked children do not mix,
    and written lines survive a ``kill -9``.

    Raises:
        OSError: The file cannot be created. Writing never raises.
    """

    def __init__(self, path: Path) -> None:
        # Inherit the permissions of the parent folder: a runtime's sessions are readable by their owner only.
        parent = next((folder for folder in path.parents if folder.is_dir()), path.parent)
        other_rights = parent.stat().st_mode & 0o077 if parent.is_dir() else 0o077
        path.parent.mkdir(0o700 | other_rights, parents=True, exist_ok=True)
        self.path = path
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600 | (other_rights & 0o044))
        size = os.fstat(self._file).st_size
        # A line cut by a crash needs a line break before the next line.
        self._ends_in_partial_line = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"
        self._reset_lock()
        after_fork_in_child(self._reset_lock)

    def _reset_lock(self) -> None:
        self._lock = threading.Lock()

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one line. If that fails, for example on a full disk, the line is dropped and counted."""
        data = (_encode(line) + "\n").encode("utf-8", "replace")
        with self._lock:
            if self._file < 0:
                return
            if self._ends_in_partial_line:
                data = b"\n" + data
            try:
                byte_count = os.write(self._file, data)
            except OSError as error:
                byte_count = 0
                warn_once("Queenright cannot write the step log %s: %s", self.path, error)
            if byte_count:
                self._ends_in_partial_line = byte_count < len(data)
        if byte_count < len(data):
            DROPPED.count("steps")

    def close(self) -> None:
        """Close the file; later lines are dropped silently."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1
