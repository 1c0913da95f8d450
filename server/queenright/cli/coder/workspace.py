"""
Files of one folder, for an agent to read and change: nothing outside of it, and nothing hidden.

Links are followed before that is looked at. This bounds what the agent's file tools touch; code that it
writes and loads runs as any code of the person who started it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from queenright.runtime.tooling.tools import Tool, ToolError

_LINES: Final = 400
_FILES: Final = 500
_BYTES: Final = 1_000_000
_SKIPPED: Final = frozenset({"__pycache__", "node_modules"})


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _List(_Arguments):
    pattern: Annotated[str, Field(description="Like *.py or mail_agent/*; without, all.")] = "*"


class _Path(_Arguments):
    path: Annotated[str, Field(min_length=1, description="In the workspace, like mail_agent/agent.json.")]


class _Read(_Path):
    first: Annotated[int, Field(ge=1, description="The first line.")] = 1


class _Write(_Path):
    content: Annotated[str, Field(max_length=_BYTES, description="The whole file.")]


class _Edit(_Path):
    old: Annotated[str, Field(min_length=1, description="What stands there, exactly, and only once.")]
    new: Annotated[str, Field(max_length=_BYTES, description="What is to stand there.")]


class _Escalation(_Arguments):
    agent: str
    error: str
    tried: Annotated[str, Field(description="What was tried, and what came of it.")]
    why: Annotated[str, Field(description="Why a person has to look at it.")]


class Workspace:
    """
    ``list_files``, ``read_file``, ``write_file``, ``edit_file`` and ``log_escalation``.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    @property
    def tools(self) -> list[Tool]:
        """The tools; give them to the graph that is to have them."""
        return [
            Tool("list_files", "List the files of the workspace.", _List, self._list, threaded=True),
            Tool("read_file", f"Read a file, {_LINES} lines at most.", _Read, self._read, threaded=True),
            Tool("write_file", "Write a file anew, folders with it.", _Write, self._write, threaded=True),
            Tool("edit_file", "Replace one place of a file.", _Edit, self._edit, threaded=True),
            Tool(
                "log_escalation",
                "Write down for a person that an agent fails and you cannot mend it.",
                _Escalation,
                self._log,
                threaded=True,
                context=("data_dir",),
            ),
        ]

    def _list(self, given: _List) -> str:
        found = sorted(str(path) for path in self._files() if path.match(given.pattern))
        more = f"\nand {len(found) - _FILES} more; say a narrower pattern" if len(found) > _FILES else ""
        return "\n".join(found[:_FILES]) + more if found else f"no files like {given.pattern!r}"

    def _files(self) -> Iterator[Path]:
        for folder, inner, names in os.walk(self.root):
            inner[:] = [name for name in inner if not name.startswith(".") and name not in _SKIPPED]
            for name in names:
                if not name.startswith("."):
                    yield Path(folder, name).relative_to(self.root)

    def _read(self, given: _Read) -> str:
        lines = self._text(self._inside(given.path), given.path).splitlines()
        shown = lines[given.first - 1 : given.first - 1 + _LINES]
        end = given.first - 1 + len(shown)
        more = f"\n({len(lines) - end} more lines; read on from line {end + 1})" if end < len(lines) else ""
        return "\n".join(shown) + more

    def _write(self, given: _Write) -> str:
        path = self._inside(given.path)
        _put(path, given.content, given.path)
        return f"wrote {given.path}, {len(given.content.splitlines())} lines"

    def _edit(self, given: _Edit) -> str:
        path = self._inside(given.path)
        text = self._text(path, given.path)
        if (times := text.count(given.old)) != 1:
            raise ToolError(
                f"`old` stands {times} times in {given.path}; give a piece that stands there once"
            )
        _put(path, text.replace(given.old, given.new), given.path)
        return f"changed {given.path}"

    def _log(self, given: _Escalation, *, data_dir: Path) -> str:
        data_dir.mkdir(parents=True, exist_ok=True)
        file = data_dir / "escalation_log.jsonl"
        with file.open("a", encoding="utf-8") as log:
            log.write(json.dumps(given.model_dump(), ensure_ascii=False) + "\n")
        return f"written to {file}"

    def _text(self, path: Path, name: str) -> str:
        try:
            if path.stat().st_size > _BYTES:
                raise ToolError(f"{name} is larger than {_BYTES // 1_000_000} MB")
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ToolError(f"{name} is no text in UTF-8") from None
        except OSError as error:
            raise ToolError(
                f"{name} cannot be read: {error.strerror}; list_files says what is there"
            ) from error

    def _inside(self, name: str) -> Path:
        """
        Return where a file is.

        Raises:
            ToolError: It would be outside of the workspace, or is hidden.
        """
        try:
            path = (self.root / name).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise ToolError(f"{name!r} is no path: {error}") from error
        if not path.is_relative_to(self.root) or path == self.root:
            raise ToolError(f"{name!r} is not in the workspace; give a path below it, like agent/agent.json")
        if any(part.startswith(".") for part in path.relative_to(self.root).parts):
            raise ToolError(f"{name!r} is hidden; files and folders that begin with a dot are left alone")
        return path


def _put(path: Path, text: str, name: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ToolError(f"{name} cannot be written: {error.strerror}") from error
