"""Which session a run is in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.identity import InvalidSessionIdError
from queenright.runtime.graphs.graph import EntryPointSpec
from queenright.runtime.parts import LoadedGraph
from queenright.runtime.storage.session_state import SessionState
from queenright.runtime.storage.session_store import Session, SessionNotFound, SessionStore


class Sessions:
    """
    Finds and makes the sessions of all graphs. Every method blocks: call it through ``Disk.run``.

    Args:
        main: Where the primary graph's sessions are; graphs that share one are found there too.
        shareable: Whether a session is for sharing: those that an entry point keeps to itself are not.
        others: Returns the stores of all graphs: who is called by an event is in the session of that.
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
        self._own: dict[tuple[str, str], Session] = {}

    def entered(self, session: Session) -> None:
        """Note that the primary graph runs in ``session``."""
        self._current = session

    def find(
        self, graph: LoadedGraph, entry: EntryPointSpec, session_id: str | None, of_event: str = ""
    ) -> tuple[Session, SessionStore]:
        """
        Return the session that a run of an entry point is in, and the store that keeps its state.

        Args:
            graph: Whose run it is.
            entry: Its entry point, which says how sessions are told apart.
            session_id: The session that was asked for, if one was.
            of_event: The session of the event that starts the run, if one does.

        Raises:
            SessionNotFound: There is none of the id that was asked for.
            InvalidSessionIdError: That could not be the name of a folder.
        """
        if entry.isolation_level == "shared":
            shared = None if session_id is not None else self._of_event(graph, of_event)
            if shared is not None or (shared := self._shared(graph, session_id)) is not None:
                return shared
        if session_id is not None:
            return graph.store.open(session_id), graph.store
        if entry.isolation_level == "isolated":
            return self._isolated(graph, entry), graph.store
        new = graph.store.create(graph_id=graph.spec.id, entry_point=entry.id, agent_id=graph.agent_id)
        return new, graph.store

    def known(self, graph: LoadedGraph, session_id: str) -> tuple[Session, SessionState]:
        """
        Return a session that a graph has run in, one of its own or one that it shares, and its state.

        Raises:
            SessionNotFound: There is none.
            InvalidSessionIdError: The id could not be the name of a folder.
            UnusableFileError: Its state cannot be read.
        """
        _, session, state = self.located(graph, session_id)
        return session, state

    def located(self, graph: LoadedGraph, session_id: str) -> tuple[SessionStore, Session, SessionState]:
        """Return a session as ``known`` does, with the store that keeps it."""
        try:
            return graph.store, graph.store.open(session_id), graph.store.read_state(session_id)
        except SessionNotFound:
            shared = self._shared(graph, session_id)
            if shared is None:
                raise
            session, store = shared
            state = store.read_state(session_id)
            ran = any(run.graph_id == graph.spec.id for run in state.executions.values())
            if store is not self._main and not ran:
                raise
            return store, session, state

    def stores(self) -> list[SessionStore]:
        """Return where sessions are: of the primary graph, and of every other."""
        return [self._main, *(store for store in self._others() if store.base != self._main.base)]

    def memory(
        self, graph: LoadedGraph, entry: EntryPointSpec, session_id: str | None
    ) -> Mapping[str, Any] | None:
        """Return what a run of an entry point would find in its session; None if that cannot be known."""
        try:
            if session_id is not None:
                return self.known(graph, session_id)[1].memory
            if entry.isolation_level == "shared" and (shared := self._shared(graph, None)) is not None:
                return self._main.read_state(shared[0].id).memory
            if entry.isolation_level == "isolated":
                key = (graph.spec.id, entry.id)
                states = graph.store.list_sessions()
                return next((one.memory for one in states if (one.graph_id, one.entry_point) == key), {})
        except (QueenrightError, OSError):
            return None
        return {}

    def is_there(self, graph: LoadedGraph, session_id: str) -> bool:
        """Return whether there is a session of this id that a graph has run in or may share."""
        try:
            return self._there(graph.store.open(session_id))
        except SessionNotFound:
            return self._shared(graph, session_id) is not None
        except InvalidSessionIdError:
            return False

    def _shared(self, graph: LoadedGraph, session_id: str | None) -> tuple[Session, SessionStore] | None:
        """
        Return a session as ``graph`` sees it: the one that is named, or the primary graph's newest.

        None if there is none to share: a run that found none has one of its own.
        """
        if session_id is None:
            main = self._newest()
            return None if main is None else (_seen_by(graph, main, self._main), self._main)
        for store in self.stores():
            try:
                return _seen_by(graph, store.open(session_id), store), store
            except SessionNotFound:
                continue
        return None

    def _of_event(self, graph: LoadedGraph, session_id: str) -> tuple[Session, SessionStore] | None:
        """Return the session of an event as ``graph`` sees it; None if that is none, or not for sharing."""
        try:
            found = self._shared(graph, session_id) if session_id else None
            shared = found is not None and self._shareable(found[1].read_state(session_id))
        except QueenrightError:
            return None
        return found if shared else None

    def _newest(self) -> Session | None:
        """Return the session that the primary graph is in, or was in last, before a restart too."""
        if self._current is None or not self._there(self._current):
            known = next(filter(self._shareable, self._main.list_sessions()), None)
            self._current = self._main.open(known.session_id) if known is not None else None
        return self._current

    def _isolated(self, graph: LoadedGraph, entry: EntryPointSpec) -> Session:
        key = (graph.spec.id, entry.id)
        known = self._own.get(key)
        if known is None or not self._there(known):
            known = self._own[key] = graph.store.persistent(graph.spec.id, entry.id, graph.agent_id)
        return known

    @staticmethod
    def _there(session: Session) -> bool:
        return (session.root / "state.json").exists()


def _seen_by(graph: LoadedGraph, session: Session, store: SessionStore) -> Session:
    """Return a session as a graph sees it: its own as it is, another one's with a folder inside."""
    return session if store.base == graph.store.base else store.shared(session, graph.spec.id)
