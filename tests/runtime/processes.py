"""Processes started by a test."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def list_children(folder: Path) -> list[int]:
    """Return this process's running children whose working folder is ``folder``."""
    return [pid for pid, parent in _list_parents(folder) if parent == os.getpid()]


def list_processes(folder: Path) -> list[int]:
    """Return all running processes whose working folder is ``folder``."""
    return [pid for pid, _ in _list_parents(folder) if pid != os.getpid()]


def _list_parents(folder: Path) -> list[tuple[int, int]]:
    parents = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
            command = stat.with_name("cmdline").read_bytes()
            if state != "Z" and os.fsencode(folder) in command:
                parents.append((int(stat.parent.name), int(parent)))
    return parents
