"""
Files that survive a kill: atomic writes, kernel locks, and careful reads.

Everything here blocks. On an event loop, run it through ``Disk``.
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

from queenright.instrumentation.errors import ConflictError, QueenrightError
from queenright.instrumentation.forks import after_fork_in_child
from queenright.runtime.deadline import wait_all

_log = logging.getLogger(__name__)

T = TypeVar("T")

TEMP_SUFFIX: Final = ".tmp"
"""Suffix of a file that is being written; a kill may leave one behind."""

PRIVATE_FILE: Final = 0o600
PRIVATE_FOLDER: Final = 0o700

_OPEN_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_THREADS: Final = 4
_CHUNK: Final = 64 * 1024


class UnusableFileError(ConflictError):
    """Raised for a file that exists but is invalid or unreadable."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} cannot be used: {reason}. Fix the file, or move it away to continue without it."
        )
        self.path = path
        self.reason = reason


class FileLockedError(QueenrightError):
    """Raised when another process holds a lock; ``pid`` is that process if known."""

    def __init__(self, path: Path, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(f"{path} is locked by {holder}; wait for it to end, or end it.")
        self.path = path
        self.pid = pid


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file that could not be read and was skipped, with the reason."""

    path: Path
    reason: str


class Disk:
    """
    Runs disk work in threads, so that the event loop never waits for the disk.

    It has its own threads, so that hanging tools in the loop's threads cannot delay writes.
    """

    def __init__(self) -> None:
        self.pending = 0
        """Number of operations in progress."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="queenright-disk")

    async def run(self, work: Callable[[], T]) -> T:
        """
        Return the result of ``work``, or raise its exception.

        If cancelled, it waits for the work to end before it raises ``CancelledError``, so that nobody is
        still writing when the caller continues.
        """
        work_items = [work]
        run = contextvars.copy_context().run
        try:
            future = asyncio.get_running_loop().run_in_executor(
                self._threads, run, lambda: work_items.pop()()
            )
        except RuntimeError:
            # It is queued before a thread is started. If that fails, another thread must not run it later.
            work_items.clear()
            raise
        self.pending += 1
        try:
            await wait_all([future])
            return future.result()
        except asyncio.CancelledError:
            if not future.cancelled() and (failure := future.exception()) is not None:
                _log.warning("cancelled disk work failed: %s", failure)
            raise
        finally:
            self.pending -= 1


def encode_json(value: object) -> bytes:
    """
    Encode ``value`` as compact JSON in UTF-8.

    Raises:
        TypeError: The value contains a value that is not JSON.
        ValueError: The value contains itself.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        # A lone surrogate, which models sometimes write, is not valid UTF-8; escape it instead.
        return json.dumps(value, separators=(",", ":")).encode()


def write_files(files: Mapping[Path, bytes]) -> None:
    """
    Write files atomically and durably: each is old or new at any moment.

    All are written to temporary files first, so that a full disk changes none of them; then each is renamed
    in order. Folders are created.

    Raises:
        OSError: The disk write failed; files renamed before that stay.
    """
    temporary_paths = {
        path: path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}{TEMP_SUFFIX}")
        for path in files
    }
    folders = list(dict.fromkeys(path.parent for path in files))
    try:
        for folder in folders:
            make_folder(folder)
        for path, data in files.items():
            with open(os.open(temporary_paths[path], _OPEN_FLAGS | os.O_EXCL, PRIVATE_FILE), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path in files:
            os.replace(temporary_paths[path], path)
    except BaseException:
        for leftover in temporary_paths.values():
            with suppress(OSError):
                leftover.unlink()
        raise
    for folder in folders:
        sync_folder(folder)


def write_json(path: Path, value: object) -> None:
    """
    Write ``value`` as JSON to ``path``, atomically and durably.

    Raises:
        OSError: The disk write failed.
        TypeError: The value contains a value that is not JSON.
    """
    write_files({path: encode_json(value)})


def read_json(path: Path) -> Any:
    """
    Read the JSON value in ``path``.

    Raises:
        FileNotFoundError: The file does not exist.
        UnusableFileError: The file cannot be read, or is not UTF-8 JSON.
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
    Append a JSON object as one line, in one write, so that lines of several processes do not mix.

    The line survives a ``kill -9``. It is not synced, so a power failure may lose the last lines. A torn
    last line is terminated first. The folder is created.

    Raises:
        OSError: The disk write failed, or was incomplete.
        TypeError: ``row`` contains a value that is not JSON.
    """
    data = encode_json(row) + b"\n"
    make_folder(path.parent)
    file = os.open(path, os.O_APPEND | _OPEN_FLAGS, PRIVATE_FILE)
    try:
        size = os.fstat(file).st_size
        if size > 0 and os.pread(file, 1, size - 1) != b"\n":
            data = b"\n" + data
        if os.write(file, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(file)


def read_newest_lines(path: Path) -> Iterator[dict[str, Any]]:
    """
    Yield the JSON objects of a file of lines, newest first; other lines are skipped.

    Reads from the end, so that the newest lines of a large file are cheap. A missing file has no lines.

    Raises:
        UnusableFileError: The file cannot be read.
    """
    for _, row in read_lines_before(path):
        yield row


def read_lines_before(path: Path, before: int | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """
    Yield the JSON objects of a file of lines with their byte offsets, newest first.

    Like ``read_newest_lines``. The file only grows, so offsets stay valid.

    Args:
        before: Only lines that start before this offset.

    Raises:
        UnusableFileError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            if before is not None:
                end = max(0, min(end, before))
            incomplete_line = b""
            while end > 0:
                start = max(end - _CHUNK, 0)
                file.seek(start)
                lines = (file.read(end - start) + incomplete_line).split(b"\n")
                # The first line may start in the previous chunk.
                incomplete_line = lines.pop(0)
                offset = start + len(incomplete_line) + 1 + sum(len(line) + 1 for line in lines)
                end = start
                for line in reversed(lines):
                    offset -= len(line) + 1
                    for row in _parse_row(line):
                        yield offset, row
            for row in _parse_row(incomplete_line):
                yield 0, row
    except FileNotFoundError:
        return
    except OSError as error:
        raise UnusableFileError(path, error.strerror or str(error)) from error


@contextmanager
def lock_file(path: Path, *, wait: bool) -> Iterator[None]:
    """
    Hold the lock on ``path`` within the block; the kernel releases it if the process is killed.

    It also excludes other threads. The file is created and stays; its folder must exist.

    Raises:
        FileLockedError: The file is locked by someone else, and ``wait`` is false.
        FileNotFoundError: The folder does not exist, or was removed while waiting.
    """
    file = _lock(path, wait=wait)
    try:
        yield
    finally:
        os.close(file)


class ExecutionLock:
    """A lock held while an execution runs. The file contains the process id, for error messages."""

    def __init__(self, path: Path, file: int) -> None:
        self.path = path
        self._file = file
        after_fork_in_child(self._close)

    @classmethod
    def take(cls, path: Path) -> ExecutionLock:
        """
        Take the lock on ``path``; the kernel releases it if the process is killed.

        Raises:
            FileLockedError: The file is locked by someone else.
            FileNotFoundError: The folder does not exist.
        """
        file = _lock(path, wait=False)
        try:
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            # Such as a full disk: the lock is held nevertheless.
            _log.warning("could not write this process's id to %s: %s", path, error)
        return cls(path, file)

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._file >= 0:
            # Unlock explicitly: a forked child may hold the same open file.
            fcntl.flock(self._file, fcntl.LOCK_UN)
            self._close()

    def _close(self) -> None:
        """Close the file. A forked child closes it too, so that it does not keep a killed parent's lock."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that renames and removals in it are durable."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def make_folder(folder: Path) -> None:
    """
    Create a folder and its parents durably.

    New folders are accessible only to their owner, because conversations are private. An existing folder is
    left unchanged.

    Raises:
        FileExistsError: A file has that name.
    """
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
    sync_folder(folder.parent)


def _lock(path: Path, *, wait: bool) -> int:
    while True:
        file = os.open(path, _OPEN_FLAGS, PRIVATE_FILE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same_file(file, path):
                return file
        except BlockingIOError:
            pid = _read_holder(file)
            os.close(file)
            raise FileLockedError(path, pid) from None
        except BaseException:
            os.close(file)
            raise
        # The file was removed or moved while we waited: this lock excludes no other process.
        os.close(file)


def _is_same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _read_holder(file: int) -> int | None:
    text = os.pread(file, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _parse_row(line: bytes) -> Iterator[dict[str, Any]]:
    if not line.strip():
        return
    try:
        row = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return
    if isinstance(row, dict):
        yield row
