"""The programs of Prometheus and Alertmanager in the two tested versions."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final, Literal

import pytest

from queenright.server.ops.programs import find_program

Version = Literal["bundled", "newest"]
VERSIONS: Final[tuple[Version, ...]] = ("bundled", "newest")
"""The version that ``make`` installs, and the newest version."""

NEWEST = Path(__file__).resolve().parent.parent / ".tools" / "newest" / "bin"


def program(name: str, version: str = "bundled") -> Path:
    """
    Return the path of prometheus, promtool, alertmanager or amtool, in one of ``VERSIONS``.

    Fails the test if the bundled version is missing. Skips it if the newest is, which not every system has.
    """
    if version == "newest":
        path = NEWEST / name
        if not path.is_file():
            pytest.skip(
                f"the newest {name} is missing; `python3 tools/provide.py newest` downloads it (Debian)"
            )
        return path
    path_on_system = find_program(name)
    assert path_on_system is not None, f"the program {name} is missing; `make test` downloads it"
    return path_on_system


def run(name: str, *arguments: str | Path, version: str = "bundled") -> subprocess.CompletedProcess[str]:
    """Run promtool or amtool, and return the completed process. The time limit only stops a hang."""
    command = [str(program(name, version)), *map(str, arguments)]
    return subprocess.run(command, text=True, capture_output=True, timeout=500)
