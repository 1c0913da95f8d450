"""Resolver of a run's session: finds or creates it. `storage.session_store` keeps sessions on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.identity import InvalidSessionIdError
from queenright.runtime.graphs.graph import EntryPointSpec
from queenright.runtime.services import LoadedGraph
from queenright.runtime.storage.session_state import SessionState
from queenright.runtime.storage.session_store import Session, SessionNotFoundError, SessionStore


class SessionResolver:
    """
    Finds and creates the sessions of all graphs. Every method blocks: call it through ``Disk.run``.

    Args:
        shareable: Returns whether a session may be shared; those of isolated entry points may not.
        others: Returns the stores of all graphs, searched for the session of a triggering event.
    """

    def __init__(
        self,
        main: SessionStore,
        shareable: Callable[[SessionState], bool],
        others: Callable[[], Iterable[SessionStore]] = tuple,
    ) -> None:
        self._main = main
        self._shareable = shareable
        self._others = others
        self._current: Session | None = None
        self._isolated_sessions: dict[tuple[str, str], Session] = {}

    def set_current(self, session: Session) -> None:
        """Record ``session`` as the primary graph's current one."""
        self._current = session

    def find(
        self, graph: LoadedGraph, entry: EntryPointSpec, session_id: str | None, event_session_id: str = ""
    ) -> tuple[Session, SessionStore]:
        """
        Return the session of a run, and the store of its state.

        Args:
            entry: The entry point; its isolation level selects the session.
            event_session_id: The session of the triggering event, if any.

        Raises:
            SessionNotFoundError: The requested session does not exist.
            InvalidSessionIdError: Its id is not a valid folder name.
        """
        if entry.isolation_level == "shared":
            match = None if session_id is not None else self._find_event_session(graph, event_session_id)
            if match is not None or (match := self._find_shared(graph, session_id)) is not None:
                return match
        if session_id is not None:
            return graph.store.open(session_id), graph.store
        if entry.isolation_level == "isolated":
            return self._find_isolated(graph, entry), graph.store
        session = graph.store.create(graph_id=graph.spec.id, entry_point=entry.id, agent_id=graph.agent_id)
        return session, graph.store

    def locate(self, graph: LoadedGraph, session_id: str) -> tuple[SessionStore, Session, SessionState]:
        """
        Return a session that a graph has run in, its own or a shared one, with its store and state.

        Raises:
            SessionNotFoundError: The session does not exist.
            InvalidSessionIdError: The id is not a valid folder name.
            UnusableFileError: The session's state cannot be read.
        """
        try:
            return graph.store, graph.store.open(session_id), graph.store.read_state(session_id)
        except SessionNotFoundError:
            match = self._find_shared(graph, session_id)
            if match is None:
                raise
            session, store = match
            state = store.read_state(session_id)
            has_run = any(run.graph_id == graph.spec.id for run in state.executions.values())
            if store is not self._main and not has_run:
                raise
            return store, session, state

    def list_stores(self) -> list[SessionStore]:
        """Return the session stores of the primary graph and of all others."""
        return [self._main, *(store for store in self._others() if store.base != self._main.base)]

    def memory(
        self, graph: LoadedGraph, entry: EntryPointSpec, session_id: str | None
    ) -> Mapping[str, Any] | None:
        """Return the memory that a run of an entry point would start with; None if it cannot be read."""
        try:
            if session_id is not None:
                return self.locate(graph, session_id)[2].memory
            if entry.isolation_level == "shared" and (match := self._find_shared(graph, None)) is not None:
                return self._main.read_state(match[0].id).memory
            if entry.isolation_level == "isolated":
                key = (graph.spec.id, entry.id)
                states = graph.store.list_sessions()
                return next((s.memory for s in states if (s.graph_id, s.entry_point) == key), {})
        except (QueenrightError, OSError):
            return None
        return {}

    def exists(self, graph: LoadedGraph, session_id: str) -> bool:
        """Return whether a session exists that a graph has run in or may share."""
        try:
            return self._exists_on_disk(graph.store.open(session_id))
        except SessionNotFoundError:
            return self._find_shared(graph, session_id) is not None
        except InvalidSessionIdError:
            return False

    def _find_shared(self, graph: LoadedGraph, session_id: str | None) -> tuple[Session, SessionStore] | None:
        """
        Return a session as seen by ``graph``: the named one, or the primary graph's newest.

        Return None if there is none to share; the run then gets its own session.
        """
        if session_id is None:
            newest_session = self._find_newest()
            return (
                None
                if newest_session is None
                else (_get_session_view(graph, newest_session, self._main), self._main)
            )
        for store in self.list_stores():
            try:
                return _get_session_view(graph, store.open(session_id), store), store
            except SessionNotFoundError:
                continue
        return None

    def _find_event_session(self, graph: LoadedGraph, session_id: str) -> tuple[Session, SessionStore] | None:
        """Return an event's session as seen by ``graph``; None if there is none, or it may not be shared."""
        try:
            match = self._find_shared(graph, session_id) if session_id else None
            is_shared = match is not None and self._shareable(match[1].read_state(session_id))
        except QueenrightError:
            return None
        return match if is_shared else None

    def _find_newest(self) -> Session | None:
        """Return the primary graph's current session, or its newest one after a restart."""
        if self._current is None or not self._exists_on_disk(self._current):
            state = next(filter(self._shareable, self._main.list_sessions()), None)
            self._current = self._main.open(state.session_id) if state is not None else None
        return self._current

    def _find_isolated(self, graph: LoadedGraph, entry: EntryPointSpec) -> Session:
        key = (graph.spec.id, entry.id)
        session = self._isolated_sessions.get(key)
        if session is None or not self._exists_on_disk(session):
            session = self._isolated_sessions[key] = graph.store.get_or_create(
                graph.spec.id, entry.id, graph.agent_id
            )
        return session

    @staticmethod
    def _exists_on_disk(session: Session) -> bool:
        return (session.root / "state.json").exists()


def _get_session_view(graph: LoadedGraph, session: Session, store: SessionStore) -> Session:
    """Return a session as a graph sees it: its own unchanged, another graph's with a folder inside."""
    return session if store.base == graph.store.base else store.get_shared_view(session, graph.spec.id)
