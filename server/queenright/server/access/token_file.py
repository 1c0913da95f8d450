"""The file of tokens: read again when it changes, written by `queenright token`."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from queenright.server.access.tokens import InvalidTokensError, Tokens, parse_tokens, render_tokens

_log = logging.getLogger(__name__)

_MAX_BYTES: Final = 8 << 20
_WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH

_Version = tuple[int, int, int, int]


def read_tokens(path: Path) -> Tokens:
    """
    Return the tokens in a file; none if there is no file.

    Others may read it, as a secret in a container is read: hashes of random words tell them nothing. Whoever
    can write it could make a token, and so nobody but its owner may.

    Raises:
        InvalidTokensError: It cannot be read, others can write it, or it is no such file.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & _WRITABLE:
                raise InvalidTokensError(
                    f"the token file {path} is writable by others (mode {stat.S_IMODE(mode):04o}); "
                    "run chmod 600, and check its tokens with `queenright token list`"
                )
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return Tokens()
    except OSError as error:
        raise InvalidTokensError(
            f"the token file {path} cannot be read ({error.strerror}); let the service's user read it"
        ) from None
    if len(content) > _MAX_BYTES:
        raise InvalidTokensError(
            f"the token file {path} is longer than {_MAX_BYTES} bytes; it is not a token file"
        )
    try:
        return parse_tokens(content)
    except InvalidTokensError as error:
        raise InvalidTokensError(
            f"the token file {path} is damaged ({error}); restore it, or move it away and create new "
            "tokens with `queenright token create`"
        ) from None


def edit_tokens(path: Path, change: Callable[[Tokens], Tokens]) -> None:
    """
    Change the file of tokens; two at once take turns, and a kill leaves the old one or the new one.

    Raises:
        InvalidTokensError: It cannot be read or written, or ``change`` refuses.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            changed = render_tokens(change(read_tokens(path)).all)
            new = path.with_name(f"{path.name}.new")
            with os.fdopen(
                os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w"
            ) as file:
                os.fchmod(file.fileno(), 0o600)
                if os.geteuid() == 0:
                    # Made by root for a service that runs as somebody else: that one has to read it.
                    kept = (path if path.exists() else path.parent).stat()
                    os.fchown(file.fileno(), kept.st_uid, kept.st_gid)
                file.write(changed)
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
    except OSError as error:
        raise InvalidTokensError(
            f"the token file {path} cannot be written ({error.strerror}); nothing was changed"
        ) from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with os.fdopen(os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class TokenFile:
    """
    The tokens that hold now.

    A file that is gone holds none, and one that cannot be read lets nobody in until it can be: what was
    revoked in it would otherwise go on.

    Args:
        path: The file; there may be none yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._loaded_version: _Version | None = None
        self._known: Tokens = Tokens()
        self._fault: InvalidTokensError | None = None

    def now(self) -> Tokens:
        """
        Return the tokens, as the file has them now.

        Raises:
            InvalidTokensError: The file cannot be used.
        """
        seen = self._version()
        if seen != self._loaded_version:
            self._loaded_version = seen
            try:
                self._known, self._fault = read_tokens(self.path), None
            except InvalidTokensError as error:
                self._known, self._fault = Tokens(), error
                _log.error("refusing all tokens: %s", error)
        if self._fault is not None:
            raise self._fault
        return self._known

    def _version(self) -> _Version:
        try:
            found = self.path.stat()
        except OSError:
            return 0, 0, 0, 0
        return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode
