"""
Whose sessions are whose: a graph that runs beside a loaded agent is a worker of its own name.

Whoever follows the agent is told of these graphs, too. An event names the worker and the session, and not
beside whom it runs; and an agent of the same name may be loaded by itself. So the sessions of such graphs
are remembered: as they begin, before their first event is in the log, and from the disk when an agent is
loaded again.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from queenright.runtime.bus import EventLog
from queenright.runtime.events import AgentEvent, EventType

KEPT: Final = 10_000
"""Sessions that are remembered of an agent: the newest."""

_BEGIN: Final = frozenset({EventType.EXECUTION_STARTED, EventType.EXECUTION_RESUMED})


class CompanionSessions:
    """Sessions of graphs that run beside loaded agents, by agent. Belongs to its event loop."""

    def __init__(self) -> None:
        self._sessions: dict[str, dict[str, None]] = {}

    def of(self, agent_id: str) -> Collection[str]:
        """Return the sessions of the graphs beside an agent; its own only where another graph shares them."""
        return self._sessions.get(agent_id, {}).keys()

    def note(self, agent_id: str, sessions: Iterable[str]) -> None:
        """Remember sessions, the oldest first."""
        known = self._sessions.setdefault(agent_id, {})
        known.update(dict.fromkeys(sessions))
        while len(known) > KEPT:
            del known[next(iter(known))]

    def log(self, log: EventLog, agent_id: Callable[[], str]) -> EventLog:
        """Return ``log`` for an agent's bus: what other workers begin there is beside it."""
        return _Noting(log, lambda events: self._saw(agent_id(), events))

    def _saw(self, agent_id: str, events: Sequence[AgentEvent]) -> None:
        for event in events:
            if event.type in _BEGIN and event.agent_id != agent_id and event.session_id:
                self.note(agent_id, [event.session_id])


def list_companion_sessions(storage: Path) -> list[str]:
    """Return the sessions of graphs beside an agent that are on its disk, oldest first. Blocks."""
    found: list[str] = []
    for folder in storage.glob("graphs/*/sessions"):
        try:
            found += os.listdir(folder)
        except OSError:
            continue  # no sessions, or none that can be read
    return sorted(found)[-KEPT:]


class _Noting:
    """An event log that looks at events before they are in it."""

    def __init__(self, log: EventLog, look: Callable[[Sequence[AgentEvent]], None]) -> None:
        self._log = log
        self._look = look

    def append(self, events: Sequence[AgentEvent]) -> Awaitable[None]:
        self._look(events)
        return self._log.append(events)

    def history(self, **what: Any) -> Awaitable[list[AgentEvent]]:
        return self._log.history(**what)
