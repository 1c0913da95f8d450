"""Tools of the demo agents: read-only access to the text files below one folder."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

_TEXT_SUFFIXES = {".md", ".py", ".toml", ".yml", ".yaml", ".txt", ".json"}
_SKIPPED_FOLDERS = {".git", ".venv", ".tools", ".queenright", "__pycache__", "node_modules", "dist", "build"}
_MAX_FILES = 400
_MAX_CHARS = 20_000

Tool = Callable[..., object]


class Library:
    """
    The text files below ``root``, as tools. Nothing outside ``root`` is ever read.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.files = sorted(self._iterate_files(self.root))[:_MAX_FILES]

    def _iterate_files(self, folder: Path) -> Iterator[str]:
        for entry in sorted(folder.iterdir()):
            if entry.is_symlink() or entry.name in _SKIPPED_FOLDERS:
                continue
            if entry.is_dir():
                yield from self._iterate_files(entry)
            elif entry.suffix in _TEXT_SUFFIXES:
                yield entry.relative_to(self.root).as_posix()

    def tools(self) -> dict[str, Tool]:
        """Return the tools by name."""
        return {
            "list_files": self.list_files,
            "read_file": self.read_file,
            "search": self.search,
            "summarise": self.summarise,
        }

    def list_files(self, suffix: str = "") -> list[str]:
        """Return the file names that end with ``suffix``."""
        return [name for name in self.files if name.endswith(suffix)]

    def read_file(self, path: str) -> str:
        """
        Return the beginning of one file.

        Raises:
            FileNotFoundError: ``path`` is not a file of the library.
        """
        if path not in self.files:
            raise FileNotFoundError(f"there is no file {path!r}; list_files lists the files")
        return (self.root / path).read_text(encoding="utf-8", errors="replace")[:_MAX_CHARS]

    def search(self, word: str) -> list[str]:
        """Return up to twenty places, ``path:line``, that contain a word."""
        matches: list[str] = []
        for path in self.files:
            for number, line in enumerate(self.read_file(path).splitlines(), 1):
                if word.lower() in line.lower():
                    matches.append(f"{path}:{number}")
                    if len(matches) == 20:
                        return matches
        return matches

    def summarise(self, path: str) -> dict[str, object]:
        """Return the length of a file and its most frequent words."""
        text = self.read_file(path)
        words = Counter(w.lower() for w in re.findall(r"[A-Za-z]{5,}", text))
        return {"path": path, "lines": text.count("\n") + 1, "words": [w for w, _ in words.most_common(5)]}


def run(tools: dict[str, Tool], name: str, arguments: dict[str, object]) -> str:
    """
    Run one tool and return its result as JSON text.

    Raises:
        KeyError: There is no such tool.
        Exception: Any error of the tool.
    """
    if name not in tools:
        raise KeyError(f"there is no tool {name!r}; available: {', '.join(sorted(tools))}")
    return json.dumps(tools[name](**arguments))
