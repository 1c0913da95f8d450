"""Unpack archives with tar, as the documents do."""

from __future__ import annotations

import subprocess
from pathlib import Path


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a ``.tar.gz`` into a folder."""
    subprocess.run(["tar", "-xzf", archive, "-C", folder], check=True, timeout=60)
