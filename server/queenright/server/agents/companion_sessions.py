"""
Companion sessions: the sessions of graphs that run next to a loaded agent.

Such a graph is a worker with its own name. A client that follows the agent also receives its events. Events
do not name the agent that the graph runs next to, and an agent with the graph's name may be loaded
separately. Sessions are therefore recorded before their first event is logged, and read from disk when an
agent is reloaded.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from queenright.runtime.bus import EventLog
from queenright.runtime.events import AgentEvent, EventType

MAX_SESSIONS: Final = 10_000
"""Maximum companion sessions per agent; the newest are kept."""

_START_EVENTS: Final = frozenset({EventType.EXECUTION_STARTED, EventType.EXECUTION_RESUMED})


class CompanionSessions:
    """The companion sessions of all loaded agents. An instance belongs to one event loop."""

    def __init__(self) -> None:
        self._sessions: dict[str, dict[str, None]] = {}

    def list_sessions(self, agent_id: str) -> Collection[str]:
        """Return an agent's companion sessions, and those of its own sessions that a companion shares."""
        return self._sessions.get(agent_id, {}).keys()

    def add(self, agent_id: str, sessions: Iterable[str]) -> None:
        """Add companion sessions of an agent, oldest first."""
        sessions_of_agent = self._sessions.setdefault(agent_id, {})
        sessions_of_agent.update(dict.fromkeys(sessions))
        while len(sessions_of_agent) > MAX_SESSIONS:
            del sessions_of_agent[next(iter(sessions_of_agent))]

    def wrap_log(self, log: EventLog, agent_id: Callable[[], str]) -> EventLog:
        """Return a log for an agent's bus. It records sessions of other workers before it appends events."""
        return _RecordingLog(log, lambda events: self._record_new(agent_id(), events))

    def _record_new(self, agent_id: str, events: Sequence[AgentEvent]) -> None:
        for event in events:
            if event.type in _START_EVENTS and event.agent_id != agent_id and event.session_id:
                self.add(agent_id, [event.session_id])


def list_companion_sessions(storage: Path) -> list[str]:
    """Return an agent's companion sessions on disk, oldest first. Blocks."""
    session_ids: list[str] = []
    for folder in storage.glob("graphs/*/sessions"):
        try:
            session_ids += os.listdir(folder)
        except OSError:
            continue  # no sessions, or not readable
    return sorted(session_ids)[-MAX_SESSIONS:]


class _RecordingLog:
    """An event log that passes events to a function before it appends them."""

    def __init__(self, log: EventLog, on_append: Callable[[Sequence[AgentEvent]], None]) -> None:
        self._log = log
        self._on_append = on_append

    def append(self, events: Sequence[AgentEvent]) -> Awaitable[None]:
        self._on_append(events)
        return self._log.append(events)

    def history(self, **filters: Any) -> Awaitable[list[AgentEvent]]:
        return self._log.history(**filters)
