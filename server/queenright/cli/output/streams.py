"""What a program prints to: nobody who stops listening stops the work, and nobody else's words come in."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Final, TextIO

_GONE: Final = (errno.EPIPE, errno.EIO, errno.EBADF)
"""Errors of a pipe whose reader has gone, of a terminal that was closed, of a file that never was open."""


class Outlet(io.FileIO):
    """
    A file descriptor to write to. Once it takes nothing any more, what is written is thrown away.

    Args:
        number: The descriptor. It stays open; once it fails it leads to nowhere, for child processes too.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number, "wb", closefd=False)
        self.lost: OSError | None = None
        """Why what was written is not there, unless nobody wants it."""

    def write(self, data: object, /) -> int:
        """Write as much as goes, and return how much that was."""
        view = memoryview(data)  # type: ignore[arg-type]
        try:
            return super().write(view)
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno not in _GONE:
                self.lost = error
            _lead_nowhere(self.fileno())
            return view.nbytes


def guard_streams() -> None:
    """Let ``print`` and all else that writes to stdout and stderr go on when nobody reads them any more."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream: TextIO | None = getattr(sys, name)
        if stream is None:
            # It was closed; the next file that is opened would take its place.
            _lead_nowhere(number)
        lines = number == 2 or (stream is not None and stream.isatty())
        encoding = "utf-8" if stream is None else stream.encoding
        setattr(sys, name, _text(Outlet(number), encoding, lines=lines))


def take_stdout() -> TextIO:
    """
    Keep stdout for the caller, who gets it; all else that is written there goes to stderr from now on.

    That is so for every thread, and for child processes that are started from now on. The streams must be
    calm.
    """
    sys.stdout.flush()
    kept = Outlet(os.dup(1))
    os.dup2(2, 1)
    return _text(kept, "utf-8")


def lost(stream: TextIO) -> OSError | None:
    """Return why what was written to ``stream`` is not where it should be; None if it is, or nobody reads."""
    with contextlib.suppress(OSError):
        stream.flush()
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.lost if isinstance(raw, Outlet) else None


def _text(outlet: Outlet, encoding: str, *, lines: bool = False) -> TextIO:
    # Half a surrogate pair, which models write now and then, has no encoding; JSON writes it like this.
    return io.TextIOWrapper(
        io.BufferedWriter(outlet), encoding=encoding, errors="backslashreplace", line_buffering=lines
    )


def _lead_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != number:  # it is, where that was closed
        os.dup2(nowhere, number)
        os.close(nowhere)
