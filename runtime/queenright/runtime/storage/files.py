"""
Files that a kill leaves whole: written aside and renamed, locked by the kernel, read with suspicion.

Everything here blocks. On an event loop, hand it to ``Disk``.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.forks import after_fork_in_child

_log = logging.getLogger(__name__)

T = TypeVar("T")

ASIDE: Final = ".tmp"
"""How the name of a file ends that is being written; a kill may leave one behind."""

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700

_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_THREADS: Final = 4
_CHUNK: Final = 64 * 1024


class UnusableFileError(QueenrightError):
    """Raised for a file that is there and is not what it should be."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} cannot be used: {reason}. Put it right, or move it away to go on without it."
        )
        self.path = path
        self.reason = reason


class FileLockedError(QueenrightError):
    """Raised when another holds a lock; ``pid`` is the holder's process if it is known."""

    def __init__(self, path: Path, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(f"{path} is held by {holder}; wait for it to end, or end it.")
        self.path = path
        self.pid = pid


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that could not be read, and why: the rest was read without it."""

    path: Path
    reason: str


class Disk:
    """
    Does disk work in threads, so that the event loop never waits for one.

    The threads are its own: tools that hang in the loop's threads do not hold up what must be written.
    """

    def __init__(self) -> None:
        self.pending = 0
        """Works under way."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="queenright-disk")

    async def run(self, work: Callable[[], T]) -> T:
        """
        Return what ``work`` returns, or raise what it raises.

        Cancelled meanwhile, it waits until the work has ended before it raises ``CancelledError``:
        whoever comes next finds a disk that nobody is writing to.
        """
        loop = asyncio.get_running_loop()
        cancelled: asyncio.CancelledError | None = None
        self.pending += 1
        try:
            future = loop.run_in_executor(self._threads, contextvars.copy_context().run, work)
            while not future.done():
                try:
                    # Unlike awaiting the future, this does not cancel it when the waiting is cancelled.
                    await asyncio.wait([future])
                except asyncio.CancelledError as error:
                    cancelled = error
        finally:
            self.pending -= 1
        if cancelled is None:
            return future.result()
        if not future.cancelled() and (failure := future.exception()) is not None:
            _log.warning("disk work that was cancelled has failed too: %s", failure)
        raise cancelled


def json_bytes(value: object) -> bytes:
    """
    Return ``value`` as JSON in UTF-8.

    Raises:
        TypeError: It holds what is no JSON value.
        ValueError: It holds itself.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        # Half a surrogate pair, which models write now and then, has no UTF-8; escaped it stays what it is.
        return json.dumps(value, separators=(",", ":")).encode()


def write_files(files: Mapping[Path, bytes]) -> None:
    """
    Write files so that each is old or new at any moment, and on the disk on return.

    All are written aside first, so that a full disk changes none of them; then each is renamed, in the
    mapping's order. Folders are made.

    Raises:
        OSError: The disk refused; what was renamed before stays.
    """
    aside = {
        path: path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}{ASIDE}") for path in files
    }
    folders = list(dict.fromkeys(path.parent for path in files))
    try:
        for folder in folders:
            make_folder(folder)
        for path, data in files.items():
            with open(os.open(aside[path], _NEW | os.O_EXCL, PRIVATE_FILE), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path in files:
            os.replace(aside[path], path)
    except BaseException:
        for left in aside.values():
            with suppress(OSError):
                left.unlink()
        raise
    for folder in folders:
        sync_folder(folder)


def write_json(path: Path, value: object) -> None:
    """
    Write ``value`` as JSON to ``path``, whole or not at all, and on the disk on return.

    Raises:
        OSError: The disk refused.
        TypeError: It holds what is no JSON value.
    """
    write_files({path: json_bytes(value)})


def read_json(path: Path) -> Any:
    """
    Return the JSON value in ``path``.

    Raises:
        FileNotFoundError: There is no such file.
        UnusableFileError: It cannot be read, or is no JSON in UTF-8.
    """
    try:
        return json.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnusableFileError(path, error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise UnusableFileError(path, "it is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise UnusableFileError(path, f"it is not JSON: {error}") from error


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    """
    Append one JSON object as a line, in one write: lines of several processes do not mix.

    What was written survives a ``kill -9``; it is not synced, so a power failure may cost the last lines.
    A last line that was torn is ended first. The folder is made.

    Raises:
        OSError: The disk refused, or took half the line.
        TypeError: ``row`` holds what is no JSON value.
    """
    data = json_bytes(row) + b"\n"
    make_folder(path.parent)
    file = os.open(path, os.O_APPEND | _NEW, PRIVATE_FILE)
    try:
        size = os.fstat(file).st_size
        if size > 0 and os.pread(file, 1, size - 1) != b"\n":
            data = b"\n" + data
        if os.write(file, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(file)


def newest_lines(path: Path) -> Iterator[dict[str, Any]]:
    """
    Yield the JSON objects of a file of lines, newest first; lines that are torn or no object are left out.

    Reads from the end, so that the newest few of a large file cost little. No file is no lines.

    Raises:
        UnusableFileError: The file is there and cannot be read.
    """
    for _, row in lines_before(path):
        yield row


def lines_before(path: Path, before: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """
    Yield the JSON objects of a file of lines with the byte that each begins at, newest first.

    As ``newest_lines``; such a file only grows, so that the byte says later, too, where one was.

    Args:
        path: The file.
        before: Only lines that begin before this byte.

    Raises:
        UnusableFileError: The file is there and cannot be read.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            if before is not None:
                end = max(0, min(end, before))
            rest = b""
            while end > 0:
                start = max(end - _CHUNK, 0)
                file.seek(start)
                lines = (file.read(end - start) + rest).split(b"\n")
                # The first may begin in the chunk before.
                rest = lines.pop(0)
                at = start + len(rest) + 1 + sum(len(line) + 1 for line in lines)
                end = start
                for line in reversed(lines):
                    at -= len(line) + 1
                    for row in _row(line):
                        yield at, row
            for row in _row(rest):
                yield 0, row
    except FileNotFoundError:
        return
    except OSError as error:
        raise UnusableFileError(path, error.strerror or str(error)) from error


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """
    Hold the lock on ``path`` for a block; the kernel releases it if the process is killed.

    It holds between threads too. The file is made and stays; its folder must be there.

    Raises:
        FileLockedError: Another holds it, and ``wait`` is false.
        FileNotFoundError: There is no such folder, or it was removed while waiting.
    """
    file = _lock(path, wait=wait)
    try:
        yield
    finally:
        os.close(file)


class Claim:
    """A lock held for as long as an execution runs; it names its holder to those who are refused."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file
        after_fork_in_child(self._forget)

    @classmethod
    def take(cls, path: Path) -> Claim:
        """
        Take the lock on ``path``; the kernel releases it if the process is killed.

        Raises:
            FileLockedError: Another holds it.
            FileNotFoundError: There is no such folder.
        """
        file = _lock(path, wait=False)
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            # A full disk: the lock holds all the same, it only cannot say whose it is.
            _log.warning("cannot write this process's id to %s: %s", path, error)
        return cls(path, file)

    def release(self) -> None:
        """Let go of the lock; a second time does nothing."""
        if self._file >= 0:
            # Said, not left to closing: a forked child may have the same open file.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._forget()

    def _forget(self) -> None:
        """Close the file: in a forked child too, which would hold the lock when its parent is killed."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def sync_folder(folder: Path) -> None:
    """Put on the disk which files ``folder`` holds: what was renamed or removed in it stays so."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def make_folder(folder: Path) -> None:
    """
    Make a folder and those above it, each on the disk before something is put in it.

    What is made here only its owner may enter: conversations are nobody else's. One that is there stays
    as it is.

    Raises:
        FileExistsError: Something else has the name.
    """
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
    sync_folder(folder.parent)


def _lock(path: Path, *, wait: bool) -> int:
    while True:
        file = os.open(path, _NEW, PRIVATE_FILE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):
                return file
        except BlockingIOError:
            pid = _holder(file)
            os.close(file)
            raise FileLockedError(path, pid) from None
        except BaseException:
            os.close(file)
            raise
        # The file was removed or moved while we waited: what we hold locks nobody out.
        os.close(file)


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _holder(file: int) -> int | None:
    text = os.pread(file, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _row(line: bytes) -> Iterator[dict[str, Any]]:
    if not line.strip():
        return
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return
    if isinstance(row, dict):
        yield row
