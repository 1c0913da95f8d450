"""
Workers of a runtime without the service, read on demand from the step logs and states of their sessions.

Reader, vital signs and detectors are the service's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from queenright.health.monitor import HealthMonitor, WorkerHealth
from queenright.health.session_outcome import WorkerStatus
from queenright.health.settings import HealthSettings
from queenright.health.steplog import StepLogReader
from queenright.health.vital_signs import VitalSigns
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
    SessionNotFoundError,
    SessionState,
    SessionStatus,
    SessionStore,
)

_log = logging.getLogger(__name__)

_RUNNING: Final = frozenset({SessionStatus.ACTIVE, SessionStatus.PAUSED, SessionStatus.UNKNOWN})


class LoggedWorkers:
    """
    The sessions of one graph as workers. Logs are read incrementally.

    Args:
        agent_id: The worker's name if a session has none.
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
        self._followed: dict[str, _FollowedSession] = {}

    async def find(self, agent_id: str, session_id: str) -> WorkerHealth | None:
        """
        See ``Workers``. If several sessions run, return the one with the newest event.

        Raises:
            InvalidSessionIdError: The id is not a valid folder name.
        """
        return await self._disk.run(lambda: self._find(agent_id, session_id))

    def _find(self, agent_id: str, session_id: str) -> WorkerHealth | None:
        if session_id:
            try:
                states = [self._sessions.read_state(session_id)]
            except (SessionNotFoundError, UnusableFileError) as error:
                _log.warning("cannot read the health of session %r: %s", session_id, error)
                return None
        else:
            states = [state for state in self._sessions.list_sessions() if state.status in _RUNNING]
            running = {state.session_id for state in states}
            self._followed = {key: session for key, session in self._followed.items() if key in running}
        healths = [self._health(state) for state in states if agent_id in ("", self._agent(state))]
        return max(healths, key=lambda health: health.vitals.last_event, default=None)

    def _agent(self, state: SessionState) -> str:
        return state.agent_id or self._agent_id or state.graph_id

    def _health(self, state: SessionState) -> WorkerHealth:
        followed = self._followed.get(state.session_id)
        if followed is None:
            session = self._sessions.open(state.session_id)
            followed = _FollowedSession(session, self._agent(state), state, self._settings)
            self._followed[state.session_id] = followed
        return followed.update(state, self._clock())


class _FollowedSession:
    """A session with the read position of its log and the resulting health."""

    def __init__(
        self, session: Session, agent_id: str, state: SessionState, settings: HealthSettings
    ) -> None:
        self._session = session
        self._reader = StepLogReader(session.logs / "tool_logs.jsonl")
        self._key = (agent_id, state.session_id)
        self._graph_id = state.graph_id
        self._monitor = HealthMonitor(settings)
        self._apply(self._event(EventType.EXECUTION_STARTED, state.created_at))

    def update(self, state: SessionState, now: float) -> WorkerHealth:
        """Read the new log entries, and return the worker's health."""
        try:
            while events := self._reader.read():
                for event in events:
                    event.agent_id, event.session_id = self._key
                    self._apply(event)
        except OSError as error:
            _log.warning("cannot read the step log %s: %s", self._reader.path, error)
        vitals = self._health.vitals
        for event in self._state_events(state, vitals):
            self._apply(event)
        if state.status is SessionStatus.UNKNOWN:
            vitals.status = WorkerStatus.UNKNOWN
        elif vitals.status is WorkerStatus.UNKNOWN:
            vitals.status = WorkerStatus(state.status.value)
        self._monitor.sweep(now)
        return self._health

    @property
    def _health(self) -> WorkerHealth:
        health = self._monitor.get(*self._key)
        assert health is not None, "the constructor adds it"
        return health

    def _apply(self, event: AgentEvent) -> None:
        # The event's own time is now: the age of a row is not clock skew.
        self._monitor.apply(event, event.time)

    def _state_events(self, state: SessionState, vitals: VitalSigns) -> Iterator[AgentEvent]:
        """Yield what only the session's state shows: a new incarnation, a wait, an end."""
        run = max(state.executions.values(), key=lambda run: run.updated_at, default=None)
        if run is None:
            return
        if run.incarnation_id and run.incarnation_id != vitals.incarnation_id:
            at = run.updated_at if vitals.incarnation_id else run.started_at
            yield self._event(EventType.EXECUTION_STARTED, at, incarnation_id=run.incarnation_id)
        match state.status:
            case SessionStatus.ACTIVE:
                yield from self._active_events(run, vitals)
            case SessionStatus.PAUSED:
                if vitals.status is not WorkerStatus.PAUSED:
                    yield self._event(EventType.EXECUTION_PAUSED, run.updated_at)
            case SessionStatus.UNKNOWN:
                return
            case _:
                if not vitals.ended:
                    yield self._end(state.status, run)

    def _active_events(self, run: ExecutionState, vitals: VitalSigns) -> Iterator[AgentEvent]:
        if vitals.ended:
            yield self._event(EventType.EXECUTION_STARTED, run.updated_at)
        elif vitals.status is WorkerStatus.PAUSED:
            yield self._event(EventType.EXECUTION_RESUMED, run.updated_at)
        reason, at = "", run.updated_at
        nodes = [_user_wait(self._session, node) for node in run.pending]
        active_nodes = [node for node in nodes if node is not None]
        if active_nodes and len(active_nodes) == len(nodes):
            at = max(at for _, at in active_nodes)
            reason = WaitingReason.USER_INPUT.value if all(waits for waits, _ in active_nodes) else ""
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


def _user_wait(session: Session, node: PendingNode) -> tuple[bool, float] | None:
    """
    Return whether a node waits for its user, and the time of the last message; None if unknown.

    The cursor shows that it asked; later messages, such as an answer, are in the conversation only.
    """
    try:
        cursor = NodeCursor.from_dict(read_json(session.conversations / node.node_id / CURSOR_FILE))
        parts = session.conversations / (node.thread or node.node_id) / "parts"
        newest = max(parts.iterdir(), key=lambda path: path.name)
        entry = Entry.from_dict(read_json(newest))
    except (OSError, ValueError, UnusableFileError):
        return None
    return cursor.awaiting == "user" and entry.seq <= cursor.seq, entry.at
