"""
Workers of a runtime that has no service: read from their sessions' step logs and states, when asked.

The same reader, the same vital signs and the same detectors as in the service; only that nobody listens, and
what happened is found on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from queenright.health.monitor import HealthMonitor, WorkerHealth
from queenright.health.settings import HealthSettings
from queenright.health.steplog import StepLogReader
from queenright.health.vitals import SessionStatus as WorkerStatus
from queenright.health.vitals import VitalSigns
from queenright.instrumentation.names import WaitingReason
from queenright.runtime.events import AgentEvent, Clock, EventType
from queenright.runtime.nodes.cursor import NodeCursor
from queenright.runtime.nodes.visit import CURSOR_FILE
from queenright.runtime.storage.entries import Entry
from queenright.runtime.storage.files import Disk, UnusableFileError, read_json
from queenright.runtime.storage.session_store import (
    ExecutionState,
    PendingNode,
    Session,
    SessionNotFound,
    SessionState,
    SessionStatus,
    SessionStore,
)

_log = logging.getLogger(__name__)

_AT_WORK: Final = frozenset({SessionStatus.ACTIVE, SessionStatus.PAUSED, SessionStatus.UNKNOWN})


class LoggedWorkers:
    """
    The sessions of one graph as workers. A log is read once; later only what is new in it.

    Args:
        sessions: Where the sessions are.
        settings: The thresholds of the detectors.
        clock: Now.
        disk: Reads in threads.
        agent_id: The worker's name where a session does not say it.
    """

    def __init__(
        self,
        sessions: SessionStore,
        *,
        settings: HealthSettings,
        clock: Clock,
        disk: Disk,
        agent_id: str = "",
    ) -> None:
        self._sessions = sessions
        self._settings = settings
        self._clock = clock
        self._disk = disk
        self._agent_id = agent_id
        self._followed: dict[str, _Followed] = {}

    async def find(self, agent_id: str, session_id: str) -> WorkerHealth | None:
        """
        See ``Workers``. Of several sessions at work it is the one with the newest event.

        Raises:
            InvalidSessionIdError: The id could not be the name of a folder.
        """
        return await self._disk.run(lambda: self._find(agent_id, session_id))

    def _find(self, agent_id: str, session_id: str) -> WorkerHealth | None:
        if session_id:
            try:
                states = [self._sessions.read_state(session_id)]
            except (SessionNotFound, UnusableFileError) as error:
                _log.warning("no health of session %r: %s", session_id, error)
                return None
        else:
            states = [state for state in self._sessions.list_sessions() if state.status in _AT_WORK]
            at_work = {state.session_id for state in states}
            self._followed = {key: known for key, known in self._followed.items() if key in at_work}
        found = [self._health(state) for state in states if agent_id in ("", self._agent(state))]
        return max(found, key=lambda health: health.vitals.last_event, default=None)

    def _agent(self, state: SessionState) -> str:
        return state.agent_id or self._agent_id or state.graph_id

    def _health(self, state: SessionState) -> WorkerHealth:
        followed = self._followed.get(state.session_id)
        if followed is None:
            session = self._sessions.open(state.session_id)
            followed = _Followed(session, self._agent(state), state, self._settings)
            self._followed[state.session_id] = followed
        return followed.with_current_facts(state, self._clock())


class _Followed:
    """One session: how far its log is read, and what that came to."""

    def __init__(
        self, session: Session, agent_id: str, state: SessionState, settings: HealthSettings
    ) -> None:
        self._session = session
        self._reader = StepLogReader(session.logs / "tool_logs.jsonl")
        self._key = (agent_id, state.session_id)
        self._graph_id = state.graph_id
        self._monitor = HealthMonitor(settings)
        self._take_in(self._event(EventType.EXECUTION_STARTED, state.created_at))

    def with_current_facts(self, state: SessionState, now: float) -> WorkerHealth:
        """Read what is new, and return how the worker is now."""
        try:
            while events := self._reader.read():
                for event in events:
                    event.agent_id, event.session_id = self._key
                    self._take_in(event)
        except OSError as error:
            _log.warning("the step log %s cannot be read: %s", self._reader.path, error)
        vitals = self._health.vitals
        for event in self._news(state, vitals):
            self._take_in(event)
        if state.status is SessionStatus.UNKNOWN:
            vitals.status = WorkerStatus.UNKNOWN
        elif vitals.status is WorkerStatus.UNKNOWN:
            vitals.status = WorkerStatus(state.status.value)
        self._monitor.sweep(now)
        return self._health

    @property
    def _health(self) -> WorkerHealth:
        health = self._monitor.get(*self._key)
        assert health is not None  # made known when the session was first followed
        return health

    def _take_in(self, event: AgentEvent) -> None:
        # As of then: how old a row is says nothing about its author's clock.
        self._monitor.apply(event, event.time)

    def _news(self, state: SessionState, vitals: VitalSigns) -> Iterator[AgentEvent]:
        """Yield what the state says and the log does not: a new life, a wait, an end."""
        run = max(state.executions.values(), key=lambda run: run.updated_at, default=None)
        if run is None:
            return
        if run.incarnation_id and run.incarnation_id != vitals.incarnation_id:
            at = run.updated_at if vitals.incarnation_id else run.started_at
            yield self._event(EventType.EXECUTION_STARTED, at, incarnation_id=run.incarnation_id)
        match state.status:
            case SessionStatus.ACTIVE:
                yield from self._goes_on(run, vitals)
            case SessionStatus.PAUSED:
                if vitals.status is not WorkerStatus.PAUSED:
                    yield self._event(EventType.EXECUTION_PAUSED, run.updated_at)
            case SessionStatus.UNKNOWN:
                return
            case _:
                if not vitals.ended:
                    yield self._end(state.status, run)

    def _goes_on(self, run: ExecutionState, vitals: VitalSigns) -> Iterator[AgentEvent]:
        if vitals.ended:
            yield self._event(EventType.EXECUTION_STARTED, run.updated_at)
        elif vitals.status is WorkerStatus.PAUSED:
            yield self._event(EventType.EXECUTION_RESUMED, run.updated_at)
        reason, at = "", run.updated_at
        talks = [_last_word(self._session, node) for node in run.pending]
        if talks and None not in talks:
            told = [talk for talk in talks if talk is not None]
            at = max(at for _, at in told)
            reason = WaitingReason.USER_INPUT.value if all(waits for waits, _ in told) else ""
        if reason != (vitals.waiting or ""):
            yield self._event(EventType.WORKER_WAITING, at, reason=reason or None)

    def _end(self, status: SessionStatus, run: ExecutionState) -> AgentEvent:
        at = run.ended_at if run.ended_at is not None else run.updated_at
        if status is SessionStatus.COMPLETED:
            return self._event(EventType.EXECUTION_COMPLETED, at)
        error_type = "cancelled" if status is SessionStatus.CANCELLED else run.error_type
        return self._event(EventType.EXECUTION_FAILED, at, error_type=error_type, error=run.error)

    def _event(self, type_: EventType, at: float, incarnation_id: str = "", **data: object) -> AgentEvent:
        return AgentEvent(
            type=type_,
            time=at,
            agent_id=self._key[0],
            session_id=self._key[1],
            incarnation_id=incarnation_id,
            graph_id=self._graph_id,
            data=data,
        )


def _last_word(session: Session, node: PendingNode) -> tuple[bool, float] | None:
    """
    Return whether a node waits for its user, and when the last word was spoken; None if nobody can tell.

    The cursor says that it asked; what was said since, an answer above all, is in the conversation only.
    """
    try:
        cursor = NodeCursor.from_dict(read_json(session.conversations / node.node_id / CURSOR_FILE))
        parts = session.conversations / (node.thread or node.node_id) / "parts"
        newest = max(parts.iterdir(), key=lambda path: path.name)
        entry = Entry.from_dict(read_json(newest))
    except (OSError, ValueError, UnusableFileError):
        return None
    return cursor.awaiting == "user" and entry.seq <= cursor.seq, entry.at
