"""The folders below which agents may be loaded. Other folders are never read or reported."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from queenright.instrumentation.errors import InvalidValueError
from queenright.instrumentation.redaction import redact
from queenright.runtime.agents.agent_parts import SPEC_FILES
from queenright.runtime.llm.litellm_provider import SCRIPTED


class PathNotAllowedError(InvalidValueError):
    """Raised when an agent or a script does not exist below the roots."""


class Roots:
    """
    Folders below which agents may be loaded. Every method blocks.

    Args:
        folders: The folders; a missing one has no agents.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = tuple(dict.fromkeys(folder.resolve() for folder in folders))

    def find_agent(self, path_text: str) -> Path:
        """
        Return the folder of an agent, with its links resolved.

        Args:
            path_text: The path of the agent, its ``agent.json`` or ``agent.py``: absolute, or below a root
                or the current folder.

        Raises:
            PathNotAllowedError: The agent does not exist below the roots.
        """
        path = Path(path_text)
        base_folders = [] if path.is_absolute() else [*self.folders, Path.cwd()]
        candidates = [root / path for root in base_folders] or [path]
        for candidate in candidates:
            try:
                folder = candidate.resolve()
                if folder.name in SPEC_FILES:
                    folder = folder.parent
                if self.contains(folder) and folder.is_dir():
                    self.check_files(folder)
                    return folder
            except (OSError, ValueError, RuntimeError):
                continue  # an invalid file name, or a circular link
        raise PathNotAllowedError(
            f"there is no agent {redact(path_text, 200)!r} to load; agents are loaded from below "
            f"{self.listing} (agents.roots), and `queenright agents discover` lists them"
        )

    def contains(self, path: Path) -> bool:
        """Return whether a resolved path is a root, or below one."""
        return any(path.is_relative_to(root) for root in self.folders)

    def resolve_model(self, name: str, folder: Path) -> str:
        """
        Return the name of a requested model, with a script's path resolved.

        Raises:
            PathNotAllowedError: The model is a script that does not exist below the roots.
        """
        if not name.startswith(SCRIPTED):
            return name
        script = name.removeprefix(SCRIPTED)
        try:
            path = (folder / script).resolve()
            if self.contains(path) and path.is_file():
                return f"{SCRIPTED}{path}"
        except (OSError, ValueError, RuntimeError):
            pass
        raise PathNotAllowedError(
            f"there is no script {redact(script, 200)!r} in the agent's folder {folder}"
        )

    @property
    def listing(self) -> str:
        """The roots, as text for messages."""
        return ", ".join(map(str, self.folders)) or "nowhere"

    def check_files(self, folder: Path) -> None:
        """
        Check that all files, folders and link targets that an agent's code could import are below the roots.

        Raises:
            PathNotAllowedError: A link leads out of the roots.
            OSError: The folder cannot be read.
        """
        visited = {folder}
        pending_folders = [folder]
        while pending_folders:
            with os.scandir(pending_folders.pop()) as entries:
                inner_folders = [
                    self._find_folder(entry) for entry in entries if not entry.name.startswith(".")
                ]
            new_folders = {path for path in inner_folders if path is not None} - visited
            visited |= new_folders
            pending_folders += new_folders

    def _find_folder(self, entry: os.DirEntry[str]) -> Path | None:
        """Return the folder that an entry is, or links to; None for a file."""
        path = Path(entry.path)
        if entry.is_symlink():
            try:
                path = path.resolve()
            except RuntimeError:  # a circular link
                return None
            if not self.contains(path):
                raise PathNotAllowedError(
                    f"{entry.path} is a link that leads out of {self.listing}; agents and their imports are "
                    "loaded only from below these; replace the link with a copy"
                )
        return path if path.is_dir() else None
