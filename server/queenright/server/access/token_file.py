"""The token file: written by `queenright token`, reloaded when it changes."""

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
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH

_Version = tuple[int, int, int, int]


def read_tokens(path: Path) -> Tokens:
    """
    Return the tokens in a file. A missing file has no tokens.

    Other users may read it, as is common for secrets in containers, because hashes of random tokens reveal
    nothing. Only its owner may write it, because anyone who can write it can create tokens.

    Raises:
        InvalidTokensError: The file cannot be read, others can write it, or it is not a token file.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & _WRITABLE_BY_OTHERS:
                raise InvalidTokensError(
                    f"the token file {path} is writable by others (mode {stat.S_IMODE(mode):04o}); "
                    "run chmod 600, and check its tokens with `queenright token list`"
                )
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return Tokens()
    except OSError as error:
        raise InvalidTokensError(
            f"the token file {path} cannot be read ({error.strerror}); make it readable by the service's user"
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
    Change the token file. Concurrent changes run one after another. A kill leaves the old or the new file.

    Raises:
        InvalidTokensError: The file cannot be read or written. Also raises what ``change`` raises.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock_file(path):
            new_text = render_tokens(change(read_tokens(path)).all)
            new_path = path.with_name(f"{path.name}.new")
            with os.fdopen(
                os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w"
            ) as file:
                os.fchmod(file.fileno(), 0o600)
                if os.geteuid() == 0:
                    # Root may create the file for a service that runs as another user and must read it.
                    owner = (path if path.exists() else path.parent).stat()
                    os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
                file.write(new_text)
                file.flush()
                os.fsync(file.fileno())
            new_path.replace(path)
    except OSError as error:
        raise InvalidTokensError(
            f"the token file {path} cannot be written ({error.strerror}); nothing was changed"
        ) from None


@contextlib.contextmanager
def _lock_file(path: Path) -> Iterator[None]:
    with os.fdopen(os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class TokenFile:
    """
    The current tokens in a file. A missing file has no tokens.

    If the file cannot be read, all tokens are refused, because revoked tokens would otherwise stay valid.

    Args:
        path: The token file; it may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._loaded_version: _Version | None = None
        self._tokens: Tokens = Tokens()
        self._fault: InvalidTokensError | None = None

    def load(self) -> Tokens:
        """
        Return the tokens in the file, reloading it if it changed.

        Raises:
            InvalidTokensError: The file cannot be used.
        """
        version = self._read_version()
        if version != self._loaded_version:
            self._loaded_version = version
            try:
                self._tokens, self._fault = read_tokens(self.path), None
            except InvalidTokensError as error:
                self._tokens, self._fault = Tokens(), error
                _log.error("refusing all tokens: %s", error)
        if self._fault is not None:
            raise self._fault
        return self._tokens

    def _read_version(self) -> _Version:
        try:
            status = self.path.stat()
        except OSError:
            return 0, 0, 0, 0
        return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode
