"""Kinds of damage to a file on disk, such as a truncated file or a folder in its place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Final

from hypothesis import strategies as st

DAMAGES: Final = (
    "torn",
    "empty",
    "not utf-8",
    "utf-16",
    "another's",
    "a list",
    "a word",
    "deep",
    "huge number",
    "wrong types",
    "folder",
    "link to nothing",
    "gone",
)

damages: Final = st.sampled_from(DAMAGES)


def damage(path: Path, kind: str) -> None:
    """Damage the file at ``path`` in the way that ``kind`` names."""
    original = path.read_bytes()
    row = json.loads(original)
    path.unlink()
    match kind:
        case "folder":
            path.mkdir()
            (path / "inside.json").write_bytes(original)
        case "link to nothing":
            path.symlink_to(path.parent / "nowhere")
        case "gone":
            pass
        case _:
            path.write_bytes(
                {
                    "torn": original[: len(original) // 2],
                    "empty": b"",
                    "not utf-8": b"\xff" + original,
                    "utf-16": original.decode().encode("utf-16"),
                    "another's": b'{"name": "somebody else\'s"}',
                    "a list": b"[1, 2]",
                    "a word": b"null",
                    "deep": b"[" * 100_000,
                    "huge number": json.dumps({**row, "seq": 10**400, "created_at": 10**400}).encode(),
                    "wrong types": json.dumps({key: [{}] for key in row}).encode(),
                }[kind]
            )


def remove(path: Path) -> None:
    """Remove the file, folder or link at ``path``, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
