"""Check folders in the settings before they are used."""

from __future__ import annotations

import tempfile
from pathlib import Path


def folder_error(folder: Path) -> str:
    """Create a folder if it is missing; return why it cannot be written to, or ""."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)
