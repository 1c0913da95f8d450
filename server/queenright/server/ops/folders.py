"""Check folders in the settings before they are used."""

from __future__ import annotations

import tempfile
from pathlib import Path

from queenright.instrumentation.errors import QueenrightError


class UnusableStorageError(QueenrightError):
    """Raised when the storage folder cannot be written to."""


def prepare_folder(folder: Path) -> str:
    """Create a folder if it is missing. Return the reason why it is not writable, or ""."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except FileExistsError:
        return "it is a file"
    except OSError as error:
        return error.strerror or str(error)


def require_usable_storage(storage: Path) -> None:
    """
    Create the storage folder if it does not exist.

    Raises:
        UnusableStorageError: The folder cannot be created or written to.
    """
    if reason := prepare_folder(storage):
        raise UnusableStorageError(
            f"The storage folder {storage} cannot be used ({reason}); choose another with --storage."
        )
