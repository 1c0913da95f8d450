"""Sessions on disk: a folder each, its state in one file that several processes may change."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.identity import InvalidSessionIdError, check_session_id
from queenright.runtime.events import Clock
from queenright.runtime.graphs.specs import Identifier
from queenright.runtime.storage.files import (
    ASIDE,
    Claim,
    FileLockedError,
    Skipped,
    UnusableFileError,
    locked,
    make_folder,
    read_json,
    sync_folder,
    write_json,
)
from queenright.runtime.storage.session_state import (
    SCHEMA_VERSION,
    ExecutionState,
    PendingNode,
    SessionState,
    SessionStatus,
    execution_key,
    problem,
)

__all__ = [
    "ExecutionState",
    "PendingNode",
    "Session",
    "SessionBusy",
    "SessionExists",
    "SessionNotFound",
    "SessionState",
    "SessionStatus",
    "SessionStore",
    "execution_key",
]

_log = logging.getLogger(__name__)

_STATE: Final = "state.json"
_CLAIM: Final = ".lock"
_WRITTEN: Final = ("conversations", "checkpoints", "logs")
_NAME_BYTES: Final = 255
_GRAPH_ID: Final[TypeAdapter[str]] = TypeAdapter(Identifier)


class SessionNotFound(QueenrightError):
    """Raised for a session that is not in the store."""

    def __init__(self, session_id: str, sessions: Path) -> None:
        super().__init__(
            f"There is no session {session_id!r} in {sessions}; the ids are the names of its folders."
        )
        self.session_id = session_id


class SessionExists(QueenrightError):
    """Raised when a session is to be made that is there already."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Session {session_id!r} is there already; open it, or leave the id out.")
        self.session_id = session_id


class SessionBusy(QueenrightError):
    """Raised when an execution writes in the session; ``pid`` is its process if it is known."""

    def __init__(self, session_id: str, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(
            f"Session {session_id!r} is busy: {holder} runs an execution in it. Wait until that has ended, "
            "or pause or cancel it there; if the process is killed, the session is free at once."
        )
        self.session_id = session_id
        self.pid = pid


@dataclass(frozen=True, slots=True)
class Session:
    """
    A session, as one graph sees it.

    ``root`` holds ``state.json``; ``path`` holds what the graph writes. They are the same folder but for a
    graph that shares another one's session.
    """

    id: str
    path: Path
    root: Path

    @property
    def conversations(self) -> Path:
        """A folder for each conversation."""
        return self.path / "conversations"

    @property
    def artifacts(self) -> Path:
        """What the graph's nodes make."""
        return self.path / "artifacts"

    @property
    def checkpoints(self) -> Path:
        """See ``CheckpointStore``."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """See ``RuntimeLogger``."""
        return self.path / "logs"


def _short_id() -> str:
    return os.urandom(4).hex()


class SessionStore:
    """
    The sessions below one folder. Every method blocks: call it through ``Disk.run``.

    Several processes may use the same folder.

    Args:
        base: Sessions lie in ``base / "sessions"``.
        clock: Returns seconds since the epoch.
        ids: Returns what makes the id of a new session unique.
    """

    def __init__(self, base: Path, *, clock: Clock, ids: Callable[[], str] = _short_id) -> None:
        self.base = base
        self.skipped: list[Skipped] = []
        """What the last listing could not read, and why."""
        self._sessions = base / "sessions"
        self._clock = clock
        self._ids = ids

    def create(
        self, *, graph_id: str, entry_point: str, agent_id: str = "", session_id: str | None = None
    ) -> Session:
        """
        Make a session; without an id it is named ``session_YYYYMMDD_HHMMSS_{8 hex digits}``, in UTC.

        Raises:
            SessionExists: There is a session of this id.
            InvalidSessionIdError: The id could not be the name of a folder.
        """
        now = self._clock()
        if session_id is None:
            session_id = f"session_{datetime.fromtimestamp(now, UTC):%Y%m%d_%H%M%S}_{self._ids()}"
        session = self._session(session_id)
        # A worker that is no graph's may have its step log there, so that the folder says nothing.
        try:
            make_folder(session.root)
        except FileExistsError as error:
            if not os.path.lexists(session.root):  # what is there is a file in place of a folder above it
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", error.filename) from error
            raise SessionExists(session_id) from error
        with locked(_state_lock(session), wait=True):
            if (session.root / _STATE).exists():
                raise SessionExists(session_id)
            state = SessionState(
                session_id=session_id,
                agent_id=agent_id,
                graph_id=graph_id,
                entry_point=entry_point,
                created_at=now,
                updated_at=now,
            )
            write_json(session.root / _STATE, state.model_dump(mode="json"))
        sync_folder(self._sessions)
        return session

    def open(self, session_id: str) -> Session:
        """
        Return a session.

        Raises:
            InvalidSessionIdError: The id could not be the name of a folder.
            SessionNotFound: There is none of this id.
        """
        session = self._session(session_id)
        if not (session.root / _STATE).exists():
            raise SessionNotFound(session_id, self._sessions)
        return session

    def shared(self, session: Session, graph_id: str) -> Session:
        """
        Return ``session`` as the graph ``graph_id`` sees it that shares it: a folder of its own inside.

        Raises:
            ValueError: The graph's id could not be the name of a folder.
        """
        path = session.root / "graphs" / _GRAPH_ID.validate_python(graph_id)
        return Session(session.id, path, session.root)

    def persistent(self, graph_id: str, entry_point: str, agent_id: str = "") -> Session:
        """Return the newest session of an entry point; make it the first time."""
        make_folder(self._sessions)
        # Two that come at the same time get the same one.
        with locked(self._sessions / _CLAIM, wait=True):
            for state in self.list_sessions():
                if (state.graph_id, state.entry_point) == (graph_id, entry_point):
                    return self._session(state.session_id)
            return self.create(graph_id=graph_id, entry_point=entry_point, agent_id=agent_id)

    def read_state(self, session_id: str) -> SessionState:
        """
        Return a session's state.

        Raises:
            InvalidSessionIdError: The id could not be the name of a folder.
            SessionNotFound: There is none of this id.
            UnusableFileError: Its state cannot be read.
        """
        return self._read(self._session(session_id))

    def update(self, session: Session, change: Callable[[SessionState], None]) -> SessionState:
        """
        Read the state, let ``change`` change it, and write it; no other process comes between.

        Raises:
            SessionNotFound: The session was deleted.
            UnusableFileError: Its state cannot be read.
            ValueError: What ``change`` made of it is no state, or holds what is no JSON value; nothing was
                written.
        """
        with self._locked(session):
            state = self._read(session)
            change(state)
            state.updated_at = max(state.updated_at, self._clock())
            # What will be read again, not what it was changed to: tuples become lists, and so on.
            state = SessionState.model_validate(state.model_dump(mode="json"))
            write_json(session.root / _STATE, state.model_dump(mode="json"))
            return state

    def list_sessions(
        self, *, status: SessionStatus | None = None, limit: int | None = None
    ) -> list[SessionState]:
        """
        Return the states of the sessions, newest first; what cannot be read is logged and in ``skipped``.

        Args:
            status: Only those that stand so.
            limit: At most so many.
        """
        states: list[SessionState] = []
        skipped: list[Skipped] = []
        for name in self._names():
            try:
                states.append(self._read(Session(name, self._sessions / name, self._sessions / name)))
            except SessionNotFound:
                continue
            except UnusableFileError as error:
                _log.warning("left out a session: %s", error)
                skipped.append(Skipped(error.path, error.reason))
        self.skipped = skipped
        states.sort(key=lambda state: (state.created_at, state.session_id), reverse=True)
        return [state for state in states if status is None or state.status is status][:limit]

    def delete_session(self, session_id: str) -> None:
        """
        Remove a session with all that lies in its folder.

        Raises:
            InvalidSessionIdError: The id could not be the name of a folder.
            SessionNotFound: There is none of this id.
            SessionBusy: An execution writes in it.
        """
        session = self.open(session_id)
        bin_ = self.base / "sessions.deleted"
        with self._locked(session), ExitStack() as claims:
            for lock in [session.root / _CLAIM, *session.root.glob(f"graphs/*/{_CLAIM}")]:
                claims.callback(self._take(session, lock).release)
            make_folder(bin_)
            # Gone in one move; a kill while the rest is removed leaves no half of a session.
            os.replace(session.root, bin_ / f"{_short_id()}-{_short_id()}")
        sync_folder(self._sessions)
        # That of a delete that was killed, too.
        for left in bin_.iterdir():
            shutil.rmtree(left, ignore_errors=True)

    def claim(self, session: Session) -> Claim:
        """
        Become the one writer of a session's graph, until the claim is released or the process is killed.

        Raises:
            SessionBusy: Another execution writes in it.
            SessionNotFound: The session was deleted.
        """
        with self._locked(session):
            if not (session.root / _STATE).exists():
                raise SessionNotFound(session.id, self._sessions)
            make_folder(session.path)
            claim = self._take(session, session.path / _CLAIM)
            try:
                _remove_torn(session)
            except BaseException:
                claim.release()
                raise
            return claim

    def is_claimed(self, session: Session) -> bool:
        """
        Return whether any process runs an execution in a session now, in whichever of its graphs.

        Raises:
            SessionNotFound: The session was deleted.
        """
        with self._locked(session):  # so that nobody who claims it now takes us for its writer
            try:
                for lock in [session.root / _CLAIM, *session.root.glob(f"graphs/*/{_CLAIM}")]:
                    if lock.exists():
                        with locked(lock, wait=False):
                            pass
            except FileLockedError:
                return True
        return False

    def _session(self, session_id: str) -> Session:
        path = self._sessions / check_session_id(session_id)
        if len(session_id.encode()) > _NAME_BYTES:
            raise InvalidSessionIdError(session_id)
        return Session(session_id, path, path)

    def _names(self) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            return [entry.name for entry in os.scandir(self._sessions) if entry.is_dir()]
        return []

    def _locked(self, session: Session) -> ExitStack:
        stack = ExitStack()
        try:
            stack.enter_context(locked(_state_lock(session), wait=True))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SessionNotFound(session.id, self._sessions) from error
        return stack

    def _take(self, session: Session, path: Path) -> Claim:
        try:
            return Claim.take(path)
        except FileLockedError as error:
            raise SessionBusy(session.id, error.pid) from error

    def _read(self, session: Session) -> SessionState:
        path = session.root / _STATE
        try:
            row = read_json(path)
        except FileNotFoundError as error:
            raise SessionNotFound(session.id, self._sessions) from error
        version = row.get("schema_version") if isinstance(row, dict) else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise UnusableFileError(
                path, f"a newer version wrote it (schema {version}, known is {SCHEMA_VERSION})"
            )
        try:
            state = SessionState.model_validate(row)
        except (ValidationError, RecursionError) as error:
            raise UnusableFileError(path, problem(error)) from error
        if state.session_id != session.id:
            raise UnusableFileError(path, f"it is the state of session {state.session_id!r}")
        return state


def _state_lock(session: Session) -> Path:
    return session.root / f"{_STATE}.lock"


def _remove_torn(session: Session) -> None:
    """Remove what a killed writer had begun to write. For whoever holds the claim and the state's lock."""
    torn = list(session.root.glob(f"{_STATE}.*{ASIDE}"))
    for name in _WRITTEN:
        torn += (session.path / name).rglob(f"*{ASIDE}")
    for path in torn:
        with suppress(OSError):
            path.unlink()
