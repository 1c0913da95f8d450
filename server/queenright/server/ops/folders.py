"""Folders that a user names: whether each can be used, before anything is begun."""

from __future__ import annotations

import tempfile
from pathlib import Path


def unusable(folder: Path) -> str:
    """Return why a folder, which is made if it is not there, cannot be written to; empty if it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)
