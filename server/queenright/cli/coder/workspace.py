"""
File tools for an agent, limited to one folder and without hidden files.

Symbolic links are resolved before the check. Only the file tools are limited: code that the agent writes and
loads runs with the rights of the user.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

from queenright.runtime.tooling.tools import Tool, ToolError

_MAX_LINES: Final = 400
_MAX_FILES: Final = 500
_MAX_BYTES: Final = 1_000_000
_SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "node_modules"})


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _ListArguments(_Arguments):
    pattern: Annotated[str, Field(description="A glob such as *.py or mail_agent/*. Default: all files.")] = (
        "*"
    )


class _PathArguments(_Arguments):
    path: Annotated[
        str, Field(min_length=1, description="Path in the workspace, such as mail_agent/agent.json.")
    ]


class _ReadArguments(_PathArguments):
    first: Annotated[int, Field(ge=1, description="The first line.")] = 1


class _WriteArguments(_PathArguments):
    content: Annotated[str, Field(max_length=_MAX_BYTES, description="The whole file.")]


class _EditArguments(_PathArguments):
    old: Annotated[str, Field(min_length=1, description="The exact text to replace; it must occur once.")]
    new: Annotated[str, Field(max_length=_MAX_BYTES, description="The replacement.")]


class _EscalationArguments(_Arguments):
    agent: str
    error: str
    tried: Annotated[str, Field(description="What was tried, with the results.")]
    why: Annotated[str, Field(description="Why a person must act.")]


class Workspace:
    """
    The tools ``list_files``, ``read_file``, ``write_file``, ``edit_file`` and ``log_escalation``.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    @property
    def tools(self) -> list[Tool]:
        """Return the tools."""
        return [
            Tool("list_files", "List the files of the workspace.", _ListArguments, self._list, threaded=True),
            Tool(
                "read_file",
                f"Read a file, at most {_MAX_LINES} lines.",
                _ReadArguments,
                self._read,
                threaded=True,
            ),
            Tool(
                "write_file",
                "Write a whole file; creates missing folders.",
                _WriteArguments,
                self._write,
                threaded=True,
            ),
            Tool("edit_file", "Replace one passage of a file.", _EditArguments, self._edit, threaded=True),
            Tool(
                "log_escalation",
                "Record for a person that an agent fails and you cannot fix it.",
                _EscalationArguments,
                self._log_escalation,
                threaded=True,
                context=("data_dir",),
            ),
        ]

    def _list(self, arguments: _ListArguments) -> str:
        paths = sorted(str(path) for path in self._iterate_files() if path.match(arguments.pattern))
        omission = (
            f"\nand {len(paths) - _MAX_FILES} more; use a narrower pattern" if len(paths) > _MAX_FILES else ""
        )
        return "\n".join(paths[:_MAX_FILES]) + omission if paths else f"no files match {arguments.pattern!r}"

    def _iterate_files(self) -> Iterator[Path]:
        for folder, subfolders, names in os.walk(self.root):
            subfolders[:] = [
                name for name in subfolders if not name.startswith(".") and name not in _SKIPPED_FOLDERS
            ]
            for name in names:
                if not name.startswith("."):
                    yield Path(folder, name).relative_to(self.root)

    def _read(self, arguments: _ReadArguments) -> str:
        lines = self._read_text(self._resolve(arguments.path), arguments.path).splitlines()
        page = lines[arguments.first - 1 : arguments.first - 1 + _MAX_LINES]
        end = arguments.first - 1 + len(page)
        continuation = (
            f"\n({len(lines) - end} more lines; continue with first={end + 1})" if end < len(lines) else ""
        )
        return "\n".join(page) + continuation

    def _write(self, arguments: _WriteArguments) -> str:
        path = self._resolve(arguments.path)
        _write_file(path, arguments.content, arguments.path)
        return f"wrote {arguments.path}, {len(arguments.content.splitlines())} lines"

    def _edit(self, arguments: _EditArguments) -> str:
        path = self._resolve(arguments.path)
        text = self._read_text(path, arguments.path)
        if (times := text.count(arguments.old)) != 1:
            raise ToolError(f"`old` occurs {times} times in {arguments.path}; it must occur once")
        _write_file(path, text.replace(arguments.old, arguments.new), arguments.path)
        return f"changed {arguments.path}"

    def _log_escalation(self, arguments: _EscalationArguments, *, data_dir: Path) -> str:
        data_dir.mkdir(parents=True, exist_ok=True)
        path = data_dir / "escalation_log.jsonl"
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(arguments.model_dump(), ensure_ascii=False) + "\n")
        return f"written to {path}"

    def _read_text(self, path: Path, name: str) -> str:
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise ToolError(f"{name} is larger than {_MAX_BYTES // 1_000_000} MB")
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ToolError(f"{name} is not UTF-8 text") from None
        except OSError as error:
            raise ToolError(f"cannot read {name}: {error.strerror}; list_files lists the files") from error

    def _resolve(self, name: str) -> Path:
        """
        Return the absolute path of a file.

        Raises:
            ToolError: The path is outside the workspace, or hidden.
        """
        try:
            path = (self.root / name).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise ToolError(f"{name!r} is not a path: {error}") from error
        if not path.is_relative_to(self.root) or path == self.root:
            raise ToolError(
                f"{name!r} is outside the workspace; use a relative path such as agent/agent.json"
            )
        if any(part.startswith(".") for part in path.relative_to(self.root).parts):
            raise ToolError(f"{name!r} is hidden; files and folders that start with a dot are off limits")
        return path


def _write_file(path: Path, text: str, name: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ToolError(f"cannot write {name}: {error.strerror}") from error
