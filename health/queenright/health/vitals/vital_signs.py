"""
Vital signs: the state of a worker's session, updated by each event.

The rules are in ``activity``, ``progress``, ``waiting`` and ``incarnation``.
"""

from __future__ import annotations

import sys

from queenright.health.vitals.incarnation import enter_incarnation
from queenright.health.vitals.vital_events import ABOUT_WORKERS, HANDLERS, WORKER_EVENTS
from queenright.health.vitals.vital_facts import EVIDENCE_LIMIT, OpenTool, Output
from queenright.health.vitals.vital_state import VitalState
from queenright.runtime.events import AgentEvent

__all__ = [
    "ABOUT_WORKERS",
    "EVIDENCE_LIMIT",
    "WORKER_EVENTS",
    "OpenTool",
    "Output",
    "VitalSigns",
]


class VitalSigns(VitalState):
    """The state of one session, and the method that applies events to it."""

    __slots__ = ()

    def apply(self, event: AgentEvent, at: float) -> None:
        """
        Apply one event of this worker.

        Args:
            at: When the event happened, by the service's clock. The monitor decides whether to trust the
                sender's time.
        """
        kind = event.type
        handler = HANDLERS.get(kind)
        if handler is None:
            return
        is_worker_event = kind in WORKER_EVENTS
        if is_worker_event:
            self.away = None
        incarnation = event.incarnation_id
        # Events of the health layer name the incarnation that they concern, but do not begin a new one.
        is_other = incarnation and incarnation != self.incarnation_id and kind not in ABOUT_WORKERS
        if is_other and not enter_incarnation(self, incarnation, at):
            return
        if event.graph_id and event.graph_id != self.graph_id:
            self.graph_id = sys.intern(event.graph_id)
        if is_worker_event:
            self.source.advance(event.time, at)
        handler(self, event, event.data, at)
