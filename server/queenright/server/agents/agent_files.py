"""
The files of an agent's folder, as text.

Every folder of a path is opened below its parent without following links, so neither a path nor a link that
an agent creates in the meantime leads outside. Hidden files are excluded: they hold keys (``.env``).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final

from queenright.instrumentation.errors import QueenrightError
from queenright.runtime.storage.files import write_files

MAX_FILE_BYTES: Final = 256_000
"""Maximum size of a file that is read or written, in bytes."""
MAX_FILES: Final = 300
"""Maximum number of files that are listed."""
MAX_VERSIONS: Final = 100
"""Maximum number of earlier versions of an agent's files; the newest are kept."""

_SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "node_modules"})
_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe must not wait for its writer.
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class AgentFileError(QueenrightError):
    """Raised when a file of an agent cannot be read or written. The message has the reason."""


class AgentFiles:
    """
    The files of one agent. Every method blocks.

    Args:
        folder: The agent's folder, with its links resolved.
        versions: The folder for earlier versions of the files, outside the agent's folder.
    """

    def __init__(self, folder: Path, versions: Path) -> None:
        self._folder = folder
        self._versions = versions

    def list(self) -> tuple[list[str], bool]:
        """Return the paths of the files, sorted, and whether there are more than ``MAX_FILES``."""
        files: list[str] = []
        for folder, subfolders, names in os.walk(self._folder):
            subfolders[:] = sorted(name for name in subfolders if not _is_excluded(name))
            folder_path = Path(folder)
            for name in sorted(names):
                path = folder_path / name
                if not _is_excluded(name) and not path.is_symlink() and path.is_file():
                    files.append(path.relative_to(self._folder).as_posix())
                    if len(files) > MAX_FILES:
                        return sorted(files[:MAX_FILES]), True
        return sorted(files), False

    def read(self, path: str) -> str:
        """
        Return a file's text.

        Raises:
            AgentFileError: The path leads outside, or the file is missing, hidden, a link, too large or not
                text.
        """
        with self._open_folder(path) as (folder, name):
            return _read_text(folder, name, path)

    def write(self, path: str, text: str, *, expected: str | None, version: str) -> Path | None:
        """
        Write a file atomically, and keep its earlier text.

        Args:
            path: The file; its folder must exist.
            text: The new text.
            expected: The current text; None if the file does not exist.
            version: The name of this change, under which the earlier text is kept.

        Returns:
            The file with the earlier text; None if there was none.

        Raises:
            AgentFileError: The file cannot be written, or has changed in the meantime.
        """
        data = text.encode("utf-8")
        if len(data) > MAX_FILE_BYTES:
            raise AgentFileError(f"{path} would have {len(data)} bytes; at most {MAX_FILE_BYTES} are allowed")
        with self._open_folder(path) as (folder, name):
            mode = _read_mode(folder, name)
            current_text = None if mode is None else _read_text(folder, name, path)
            if current_text != expected:
                raise AgentFileError(f"{path} has changed in the meantime; read it again")
            backup = (
                None
                if current_text is None
                else self._keep_version(path, current_text.encode("utf-8"), version)
            )
            try:
                _replace_file(folder, name, data, 0o644 if mode is None else mode)
            except OSError as error:
                raise AgentFileError(f"cannot write {path}: {error.strerror}") from error
            return backup

    def exists(self, path: str) -> bool:
        """
        Return whether a path exists.

        Raises:
            AgentFileError: See ``read``.
        """
        with self._open_folder(path) as (folder, name):
            return _read_mode(folder, name) is not None

    def _keep_version(self, path: str, data: bytes, version: str) -> Path:
        backup = self._versions / "-".join((version, *_split_path(path)))
        try:
            write_files({backup: data})
            for name in sorted(os.listdir(self._versions))[:-MAX_VERSIONS]:
                (self._versions / name).unlink()
        except OSError as error:
            raise AgentFileError(
                f"cannot keep the earlier version in {self._versions}: {error.strerror}; nothing was changed"
            ) from error
        return backup

    @contextmanager
    def _open_folder(self, path: str) -> Iterator[tuple[int, str]]:
        """Open the folder of a file; yield its descriptor and the file's name."""
        *subfolders, name = _split_path(path)
        descriptor = -1
        try:
            try:
                descriptor = os.open(self._folder, _FOLDER_FLAGS)
                for part in subfolders:
                    parent, descriptor = descriptor, os.open(part, _FOLDER_FLAGS, dir_fd=descriptor)
                    os.close(parent)
            except OSError as error:
                raise AgentFileError(
                    f"there is no folder for {path!r} in the agent's folder; links are not followed"
                ) from error
            yield descriptor, name
        finally:
            if descriptor != -1:
                os.close(descriptor)


def _split_path(path: str) -> tuple[str, ...]:
    pure = PurePosixPath(path)
    if not path.isprintable() or not pure.parts:
        raise AgentFileError(f"{path!r} is not the path of a file; use a relative path such as tools.py")
    if pure.is_absolute() or ".." in pure.parts:
        raise AgentFileError(f"{path!r} is outside the agent's folder; use a relative path such as tools.py")
    if any(_is_excluded(part) for part in pure.parts):
        raise AgentFileError(f"{path!r} is hidden; hidden files may hold keys and are not shown or changed")
    return pure.parts


def _is_excluded(name: str) -> bool:
    return name.startswith(".") or name in _SKIPPED_FOLDERS


def _read_mode(folder: int, name: str) -> int | None:
    try:
        return stat.S_IMODE(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AgentFileError(f"cannot read {name}: {error.strerror}") from error


def _read_text(folder: int, name: str, path: str) -> str:
    try:
        descriptor = os.open(name, _READ_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        raise AgentFileError(f"there is no file {path!r} in the agent's folder") from None
    except OSError as error:
        if _is_link(folder, name):
            raise AgentFileError(f"{path} is a link; links are not followed") from error
        raise AgentFileError(f"cannot read {path}: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise AgentFileError(f"{path} is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise AgentFileError(f"cannot read {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE_BYTES:
        raise AgentFileError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise AgentFileError(f"{path} is not UTF-8 text")
    return text


def _is_link(folder: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _replace_file(folder: int, name: str, data: bytes, mode: int) -> None:
    """Write a file in an open folder atomically and durably."""
    temporary = f".{os.urandom(8).hex()}.tmp"
    descriptor = os.open(temporary, _CREATE_FLAGS, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    os.fsync(folder)
