"""What is known of runs after the service was started anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from queenright.health.monitor import HealthMonitor
from queenright.health.vitals import SessionStatus
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.dialects import CLIENT_NAMES

RECALLED: Final = (
    EventType.WORKER_WAITING,
    EventType.LLM_CALL_STARTED,
    EventType.LLM_CALL_COMPLETED,
    EventType.TOOL_CALL_STARTED,
    EventType.TOOL_CALL_COMPLETED,
)
RECALLED_EVENTS: Final = 5_000
"""So many of these events are read at most: those of which a sender may tell again."""


def recall(assembler: Assembler, monitor: HealthMonitor, events: Iterable[AgentEvent]) -> None:
    """
    Tell a new assembler which runs go on and what they are called, what they wait for, and which calls count.

    Args:
        assembler: One that has read nothing.
        monitor: Knows the workers of before.
        events: What was stored last of the types `RECALLED`, oldest first.
    """
    for incarnation, session, names in monitor.foreign_runs():
        assembler.traces.restore_name(incarnation, session, names)
    for worker in monitor.workers():
        (agent, session), ended_at = worker.key, worker.vitals.ended_at
        if (client := agent.partition("/")[0]) in CLIENT_NAMES:
            ended_ns = None if ended_at is None else round(ended_at * 1e9)
            has_failed = worker.vitals.status is SessionStatus.FAILED
            assembler.sessions.reset(client, session, agent, ended_at=ended_ns, has_failed=has_failed)
    for event in events:
        assembler.sessions.restore(event)
