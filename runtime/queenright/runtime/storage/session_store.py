"""Store of sessions on disk: a folder each, with the state in one file that several processes may update."""

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

from queenright.instrumentation.errors import ConflictError, NotFoundError, QueenrightError
from queenright.instrumentation.identity import InvalidSessionIdError, check_session_id
from queenright.runtime.events import Clock
from queenright.runtime.graphs.specs import Identifier
from queenright.runtime.storage.files import (
    TEMP_SUFFIX,
    ExecutionLock,
    FileLockedError,
    SkippedFile,
    UnusableFileError,
    lock_file,
    make_folder,
    read_json,
    sync_folder,
    write_json,
)
from queenright.runtime.storage.session_state import (
    SCHEMA_VERSION,
    SessionState,
    SessionStatus,
    describe_invalid_state,
)

_log = logging.getLogger(__name__)

_STATE_FILE: Final = "state.json"
_LOCK_FILE: Final = ".lock"
_WRITTEN_FOLDERS: Final = ("conversations", "checkpoints", "logs")
_NAME_BYTES: Final = 255
_GRAPH_ID: Final[TypeAdapter[str]] = TypeAdapter(Identifier)


class SessionNotFoundError(NotFoundError):
    """Raised for a session that is not in the store."""

    def __init__(self, session_id: str, sessions: Path) -> None:
        super().__init__(f"There is no session {session_id!r} in {sessions}; its folders are named by id.")
        self.session_id = session_id


class SessionExistsError(QueenrightError):
    """Raised when the id of a new session is already in use."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"Session {session_id!r} already exists; open it, or omit the id.")
        self.session_id = session_id


class SessionBusyError(ConflictError):
    """Raised when an execution is running in the session; ``pid`` is its process if known."""

    def __init__(self, session_id: str, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "another process"
        super().__init__(
            f"Session {session_id!r} is busy: {holder} runs an execution in it. Wait until that has ended, "
            "or pause or cancel it there. If the process is killed, the session becomes free at once."
        )
        self.session_id = session_id
        self.pid = pid


@dataclass(frozen=True, slots=True)
class Session:
    """
    A session, as seen by one graph.

    ``root`` contains ``state.json``; ``path`` contains the files of the graph. They differ only for a graph
    that shares another graph's session.
    """

    id: str
    path: Path
    root: Path

    @property
    def conversations(self) -> Path:
        """Folder of the conversations."""
        return self.path / "conversations"

    @property
    def artifacts(self) -> Path:
        """Folder for files made by the graph's nodes."""
        return self.path / "artifacts"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints; see ``CheckpointStore``."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """Folder of the logs; see ``RuntimeLogger``."""
        return self.path / "logs"


def _make_short_id() -> str:
    return os.urandom(4).hex()


class SessionStore:
    """
    The sessions in one folder. Every method blocks: call it through ``Disk.run``.

    Several processes may use the same folder.

    Args:
        base: The sessions are in ``base / "sessions"``.
    """

    def __init__(self, base: Path, *, clock: Clock, ids: Callable[[], str] = _make_short_id) -> None:
        self.base = base
        self.skipped_files: list[SkippedFile] = []
        """Files that the last listing could not read, with reasons."""
        self._sessions = base / "sessions"
        self._clock = clock
        self._ids = ids

    def create(
        self, *, graph_id: str, entry_point: str, agent_id: str = "", session_id: str | None = None
    ) -> Session:
        """
        Create a session; its default id is ``session_YYYYMMDD_HHMMSS_{8 hex digits}``, in UTC.

        Raises:
            SessionExistsError: The id is in use.
            InvalidSessionIdError: The id is not a valid folder name.
        """
        now = self._clock()
        if session_id is None:
            session_id = f"session_{datetime.fromtimestamp(now, UTC):%Y%m%d_%H%M%S}_{self._ids()}"
        session = self._make_session(session_id)
        # The folder alone proves nothing: a worker without a graph may keep its step log there.
        try:
            make_folder(session.root)
        except FileExistsError as error:
            if not os.path.lexists(session.root):  # a file is in place of a parent folder
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", error.filename) from error
            raise SessionExistsError(session_id) from error
        with lock_file(_get_state_lock_path(session), wait=True):
            if (session.root / _STATE_FILE).exists():
                raise SessionExistsError(session_id)
            state = SessionState(
                session_id=session_id,
                agent_id=agent_id,
                graph_id=graph_id,
                entry_point=entry_point,
                created_at=now,
                updated_at=now,
            )
            write_json(session.root / _STATE_FILE, state.model_dump(mode="json"))
        sync_folder(self._sessions)
        return session

    def open(self, session_id: str) -> Session:
        """
        Return an existing session.

        Raises:
            InvalidSessionIdError: The id is not a valid folder name.
            SessionNotFoundError: The session does not exist.
        """
        session = self._make_session(session_id)
        if not (session.root / _STATE_FILE).exists():
            raise SessionNotFoundError(session_id, self._sessions)
        return session

    def get_shared_view(self, session: Session, graph_id: str) -> Session:
        """
        Return ``session`` as seen by the graph ``graph_id`` that shares it, with its own folder inside.

        Raises:
            ValueError: The graph's id is not a valid folder name.
        """
        path = session.root / "graphs" / _GRAPH_ID.validate_python(graph_id)
        return Session(session.id, path, session.root)

    def get_or_create(self, graph_id: str, entry_point: str, agent_id: str = "") -> Session:
        """Return the newest session of an entry point; create the first one."""
        make_folder(self._sessions)
        # Concurrent callers must get the same session.
        with lock_file(self._sessions / _LOCK_FILE, wait=True):
            for state in self.list_sessions():
                if (state.graph_id, state.entry_point) == (graph_id, entry_point):
                    return self._make_session(state.session_id)
            return self.create(graph_id=graph_id, entry_point=entry_point, agent_id=agent_id)

    def read_state(self, session_id: str) -> SessionState:
        """
        Return a session's state.

        Raises:
            InvalidSessionIdError: The id is not a valid folder name.
            SessionNotFoundError: The session does not exist.
            UnusableFileError: Its state cannot be read.
        """
        return self._read_state(self._make_session(session_id))

    def update(self, session: Session, change: Callable[[SessionState], None]) -> SessionState:
        """
        Read the state, apply ``change`` and write it, excluding other processes.

        Raises:
            SessionNotFoundError: The session was deleted.
            UnusableFileError: Its state cannot be read.
            ValueError: The changed state is invalid, or contains a value that is not JSON; nothing was
                written.
        """
        with self._lock_state(session):
            state = self._read_state(session)
            change(state)
            state.updated_at = max(state.updated_at, self._clock())
            # Return what will be read back: tuples become lists, and so on.
            state = SessionState.model_validate(state.model_dump(mode="json"))
            write_json(session.root / _STATE_FILE, state.model_dump(mode="json"))
            return state

    def list_sessions(
        self, *, status: SessionStatus | None = None, limit: int | None = None
    ) -> list[SessionState]:
        """
        Return the states of the sessions, newest first.

        Unreadable ones are logged and listed in ``skipped_files``.
        """
        states: list[SessionState] = []
        skipped_files: list[SkippedFile] = []
        for name in self._list_names():
            try:
                states.append(self._read_state(Session(name, self._sessions / name, self._sessions / name)))
            except SessionNotFoundError:
                continue
            except UnusableFileError as error:
                _log.warning("skipped a session: %s", error)
                skipped_files.append(SkippedFile(error.path, error.reason))
        self.skipped_files = skipped_files
        states.sort(key=lambda state: (state.created_at, state.session_id), reverse=True)
        return [state for state in states if status is None or state.status is status][:limit]

    def delete_session(self, session_id: str) -> None:
        """
        Delete a session and its folder.

        Raises:
            InvalidSessionIdError: The id is not a valid folder name.
            SessionNotFoundError: The session does not exist.
            SessionBusyError: An execution is running in it.
        """
        session = self.open(session_id)
        trash = self.base / "sessions.deleted"
        with self._lock_state(session), ExitStack() as claims:
            for lock in [session.root / _LOCK_FILE, *session.root.glob(f"graphs/*/{_LOCK_FILE}")]:
                claims.callback(self._claim_file(session, lock).release)
            make_folder(trash)
            # Move it in one step, so that a kill during the removal leaves no partial session.
            os.replace(session.root, trash / f"{_make_short_id()}-{_make_short_id()}")
        sync_folder(self._sessions)
        # This includes the leftovers of a deletion that was killed.
        for leftover in trash.iterdir():
            shutil.rmtree(leftover, ignore_errors=True)

    def claim(self, session: Session) -> ExecutionLock:
        """
        Become the only writer of a session's graph until the claim is released or the process is killed.

        Raises:
            SessionBusyError: Another execution is running in it.
            SessionNotFoundError: The session was deleted.
        """
        with self._lock_state(session):
            if not (session.root / _STATE_FILE).exists():
                raise SessionNotFoundError(session.id, self._sessions)
            make_folder(session.path)
            claim = self._claim_file(session, session.path / _LOCK_FILE)
            try:
                _remove_temporary_files(session)
            except BaseException:
                claim.release()
                raise
            return claim

    def is_claimed(self, session: Session) -> bool:
        """
        Return whether any process runs an execution in a session, in any of its graphs.

        Raises:
            SessionNotFoundError: The session was deleted.
        """
        with self._lock_state(session):  # so that our probe is not mistaken for a writer
            try:
                for lock in [session.root / _LOCK_FILE, *session.root.glob(f"graphs/*/{_LOCK_FILE}")]:
                    if lock.exists():
                        with lock_file(lock, wait=False):
                            pass
            except FileLockedError:
                return True
        return False

    def _make_session(self, session_id: str) -> Session:
        path = self._sessions / check_session_id(session_id)
        if len(session_id.encode()) > _NAME_BYTES:
            raise InvalidSessionIdError(session_id)
        return Session(session_id, path, path)

    def _list_names(self) -> list[str]:
        with suppress(FileNotFoundError, NotADirectoryError):
            return [entry.name for entry in os.scandir(self._sessions) if entry.is_dir()]
        return []

    def _lock_state(self, session: Session) -> ExitStack:
        stack = ExitStack()
        try:
            stack.enter_context(lock_file(_get_state_lock_path(session), wait=True))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SessionNotFoundError(session.id, self._sessions) from error
        return stack

    def _claim_file(self, session: Session, path: Path) -> ExecutionLock:
        try:
            return ExecutionLock.take(path)
        except FileLockedError as error:
            raise SessionBusyError(session.id, error.pid) from error

    def _read_state(self, session: Session) -> SessionState:
        path = session.root / _STATE_FILE
        try:
            row = read_json(path)
        except FileNotFoundError as error:
            raise SessionNotFoundError(session.id, self._sessions) from error
        version = row.get("schema_version") if isinstance(row, dict) else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise UnusableFileError(
                path, f"it was written by a newer version (schema {version}, supported: {SCHEMA_VERSION})"
            )
        try:
            state = SessionState.model_validate(row)
        except (ValidationError, RecursionError) as error:
            raise UnusableFileError(path, describe_invalid_state(error)) from error
        if state.session_id != session.id:
            raise UnusableFileError(path, f"it contains the state of session {state.session_id!r}")
        return state


def _get_state_lock_path(session: Session) -> Path:
    return session.root / f"{_STATE_FILE}.lock"


def _remove_temporary_files(session: Session) -> None:
    """Remove temporary files of a killed writer. The caller holds the claim and the state's lock."""
    leftovers = list(session.root.glob(f"{_STATE_FILE}.*{TEMP_SUFFIX}"))
    for name in _WRITTEN_FOLDERS:
        leftovers += (session.path / name).rglob(f"*{TEMP_SUFFIX}")
    for path in leftovers:
        with suppress(OSError):
            path.unlink()
