"""Restore the state of runs after a restart of the service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.dialects import CLIENT_NAMES

RECALLED_TYPES: Final = (
    EventType.WORKER_WAITING,
    EventType.LLM_CALL_STARTED,
    EventType.LLM_CALL_COMPLETED,
    EventType.TOOL_CALL_STARTED,
    EventType.TOOL_CALL_COMPLETED,
)
MAX_RECALLED_EVENTS: Final = 5_000
"""Maximum events to read. Senders may report the calls of these again."""


def restore_runs(assembler: Assembler, monitor: HealthMonitor, events: Iterable[AgentEvent]) -> None:
    """
    Restore the open runs in a new assembler: their names, waits and calls.

    Args:
        assembler: A new assembler.
        monitor: The rebuilt monitor, with the workers from before the restart.
        events: The latest stored events of the types in `RECALLED_TYPES`, oldest first.
    """
    for incarnation, session, names in monitor.foreign_runs():
        assembler.traces.restore_name(incarnation, session, names)
    for worker in monitor.workers():
        (agent, session), ended_at = worker.key, worker.vitals.ended_at
        if (client := agent.partition("/")[0]) in CLIENT_NAMES:
            ended_ns = None if ended_at is None else round(ended_at * 1e9)
            has_failed = worker.vitals.status is WorkerStatus.FAILED
            assembler.sessions.reset(client, session, agent, ended_at=ended_ns, has_failed=has_failed)
    for event in events:
        assembler.sessions.restore(event)
