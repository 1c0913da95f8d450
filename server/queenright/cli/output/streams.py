"""Standard streams that survive a closed reader, and a stdout that only the command writes to."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Final, TextIO

_CLOSED_ERRORS: Final = (errno.EPIPE, errno.EIO, errno.EBADF)
"""Errors of a pipe without a reader, of a closed terminal, and of a file that was never open."""


class GuardedFile(io.FileIO):
    """
    A file descriptor to write to. After a failed write, output is discarded instead of raising.

    Args:
        number: The descriptor. It stays open; after a failure it leads to /dev/null, for child processes too.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number, "wb", closefd=False)
        self.error: OSError | None = None
        """Why output was lost; None if none was, or if the reader closed the stream."""

    def write(self, data: object, /) -> int:
        """Write, and return the number of bytes written."""
        view = memoryview(data)  # type: ignore[arg-type]
        try:
            return super().write(view)
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno not in _CLOSED_ERRORS:
                self.error = error
            _redirect_to_null(self.fileno())
            return view.nbytes


def guard_streams() -> None:
    """Replace stdout and stderr by streams that do not fail when their reader is gone."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream: TextIO | None = getattr(sys, name)
        if stream is None:
            # The descriptor is closed: the next file that is opened would take its number.
            _redirect_to_null(number)
        is_line_buffered = number == 2 or (stream is not None and stream.isatty())
        encoding = "utf-8" if stream is None else stream.encoding
        setattr(sys, name, _open_text_stream(GuardedFile(number), encoding, line_buffering=is_line_buffered))


def take_stdout() -> TextIO:
    """
    Return stdout, and send everything else that is written to it to stderr from now on.

    Applies to all threads, and to child processes started from now on. Nothing may write to the streams
    during the call.
    """
    sys.stdout.flush()
    original_stdout = GuardedFile(os.dup(1))
    os.dup2(2, 1)
    return _open_text_stream(original_stdout, "utf-8")


def get_write_error(stream: TextIO) -> OSError | None:
    """Return why output to a guarded stream was lost; None if it was written, or if the reader is gone."""
    with contextlib.suppress(OSError):
        stream.flush()
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.error if isinstance(raw, GuardedFile) else None


def _open_text_stream(file: GuardedFile, encoding: str, *, line_buffering: bool = False) -> TextIO:
    # Models sometimes write lone surrogates, which have no encoding; escape them as JSON does.
    return io.TextIOWrapper(
        io.BufferedWriter(file), encoding=encoding, errors="backslashreplace", line_buffering=line_buffering
    )


def _redirect_to_null(number: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    if null != number:  # equal if the descriptor was closed
        os.dup2(null, number)
        os.close(null)
