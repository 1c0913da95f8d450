"""
The monitor: every worker's vital signs, and who has to be looked at when.

It does no I/O and reads no clock: events go in, and what there is to say about them comes out as
events. A heap holds, for each worker, the earliest moment at which it could change by doing nothing.
What the worker does nearly always puts that off, so the entry is left alone until it comes up and is looked
at anew then: an event costs next to nothing, and an idle worker nothing at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any, Final

from queenright.health.deadlines import grace_until, moments, shortest_limit
from queenright.health.detectors import detect, suspicious
from queenright.health.findings import Finding, FindingKind, HealthState, WorkerKey, worst
from queenright.health.settings import HealthSettings
from queenright.health.state import health_state
from queenright.health.vitals import WORKER_EVENTS, VitalSigns
from queenright.runtime.events import AgentEvent, EventType

ENDED_KEPT: Final = 10_000
"""So many sessions that are over are remembered, the newest."""

ENDED_KEPT_SECONDS: Final = 3600.0

# After these a deadline may come sooner than the shortest limit says.
_MOVES_DEADLINE: Final = frozenset(
    {
        EventType.AGENT_HEARTBEAT,
        EventType.CHECKPOINT_SAVED,
        EventType.CLIENT_INPUT_RECEIVED,
        EventType.EXECUTION_RESUMED,
        EventType.EXECUTION_STARTED,
        EventType.WORKER_WAITING,
    }
)
# Only after these can a detector that counts have more to say.
_COUNTED: Final = frozenset(
    {EventType.STEP_COMPLETED, EventType.LLM_CALL_COMPLETED, EventType.TOOL_CALL_COMPLETED}
)
_SILENCE: Final = frozenset(
    {
        FindingKind.STALL,
        FindingKind.TOOL_TIMEOUT,
        FindingKind.HEARTBEAT_MISSING,
        FindingKind.CHECKPOINT_STALE,
        FindingKind.NO_TOOL_CALLS,
    }
)


@dataclass(slots=True, eq=False)
class WorkerHealth:
    """One worker as the monitor sees it: vital signs, open findings, state and since when."""

    vitals: VitalSigns
    findings: tuple[Finding, ...]
    state: HealthState
    state_since: float
    reason: str
    deadline: float | None = None
    """The one entry of this worker in the heap that counts."""

    @property
    def key(self) -> WorkerKey:
        """Agent and session."""
        return (self.vitals.agent_id, self.vitals.session_id)


class HealthMonitor:
    """
    Turns events of workers into findings and states.

    Not thread-safe: it belongs to one event loop. Every method takes the time
    as an argument; equal events and times give equal answers.
    """

    def __init__(
        self, settings: HealthSettings, *, on_delay: Callable[[FindingKind, float], None] | None = None
    ) -> None:
        self.settings = settings
        self._on_delay = on_delay
        self._tolerance = settings.clock_tolerance_seconds
        self._shortest = shortest_limit(settings)
        self._workers: dict[WorkerKey, WorkerHealth] = {}
        self._sessions: dict[str, list[str]] = {}
        self._heap: list[tuple[float, WorkerKey]] = []
        self._ended: deque[tuple[float, WorkerKey]] = deque()
        self._now = 0.0

    # -- time and events ----------------------------------------------------------------------------

    def apply(self, event: AgentEvent, now: float) -> list[AgentEvent]:
        """
        Take in one event and return what there is to say about it.

        The event is timed by its author's clock if that is within the tolerance before ``now``,
        else by its arrival. Events that are not a worker's are ignored, our own among them.
        """
        if event.type not in WORKER_EVENTS or not event.agent_id:
            return []
        at = event.time
        if at > now or at < now - self._tolerance:
            at = now
        if now > self._now:
            self._now = now
        if self._ended:
            self._forget_ended(now)
        key = (event.agent_id, event.session_id)
        worker = self._workers.get(key)
        said: list[AgentEvent] = []
        if worker is None:
            worker = self._welcome(key, at)
        elif worker.deadline is not None and worker.deadline <= at:
            # Nobody looked in time; the event must not hide the silence before it.
            said = self._look(worker, at, now)
        v = worker.vitals
        was_over = v.ended_at
        v.apply(event, at)
        deadline = worker.deadline
        if (
            deadline is None
            or deadline > v.last_activity + self._shortest
            or event.type in _MOVES_DEADLINE
            or (event.type is EventType.TOOL_CALL_STARTED and event.data.get("timeout") is not None)
        ):
            self._schedule(worker, at)
        if v.ended_at is not None and v.ended_at != was_over:
            self._ended.append((v.ended_at, worker.key))
            said += self._examine(worker, at, now, now - at)
        elif (
            worker.findings
            or worker.state is not HealthState.HEALTHY
            or (event.type in _COUNTED and suspicious(v, self.settings))
        ):
            said += self._examine(worker, at, now, now - at)
            if worker.findings and grace_until(v, self.settings) > at:
                self._schedule(worker, at)
        return said

    def advance(self, now: float) -> list[AgentEvent]:
        """Look at everybody whose deadline has passed, and return what there is to say."""
        if now > self._now:
            self._now = now
        said: list[AgentEvent] = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            due, key = heappop(heap)
            worker = self._workers.get(key)
            if worker is not None and worker.deadline == due:
                said += self._look(worker, now, now)
        self._forget_ended(now)
        return said

    def sweep(self, now: float) -> tuple[int, list[AgentEvent]]:
        """Look at everybody, the safety net below the deadlines; return how many, and what to say."""
        if now > self._now:
            self._now = now
        said: list[AgentEvent] = []
        for worker in list(self._workers.values()):
            said += self._look(worker, now, now)
        return len(self._workers), said

    def next_deadline(self) -> float | None:
        """Return when ``advance`` has something to do at the earliest; None if time alone changes nobody."""
        heap = self._heap
        while heap:
            due, key = heap[0]
            worker = self._workers.get(key)
            if worker is not None and worker.deadline == due:
                return due
            heappop(heap)
        return None

    def clock_jumped(self, now: float) -> None:
        """
        Start every silence anew: the host slept, or its clock was set, and ages mean nothing.

        A silence that had been found before keeps its age, so that a jump ends no finding either.
        """
        by = now - self._now
        for worker in self._workers.values():
            if any(finding.kind in _SILENCE for finding in worker.findings):
                worker.vitals.shift_clocks(by, now)
            else:
                worker.vitals.restart_clocks(now)
        self._now = now
        self._heap.clear()
        for worker in self._workers.values():
            worker.deadline = self._next(worker, now)
            if worker.deadline is not None:
                self._heap.append((worker.deadline, worker.key))
        heapify(self._heap)

    # -- who there is -------------------------------------------------------------------------------

    def workers(self) -> Iterable[WorkerHealth]:
        """Return every worker that is known."""
        return self._workers.values()

    def get(self, agent_id: str, session_id: str | None = None) -> WorkerHealth | None:
        """
        Return one worker, or None if it is not known.

        Without a session, one that is not over wins over one that is; of several, the one
        last heard of.
        """
        if session_id is not None:
            return self._workers.get((agent_id, session_id))
        known = [self._workers[agent_id, session] for session in self._sessions.get(agent_id, ())]
        return max(known, key=lambda w: (not w.vitals.ended, w.vitals.last_event), default=None)

    def forget(self, key: WorkerKey) -> None:
        """Drop a worker, if it is known."""
        if self._workers.pop(key, None) is None:
            return
        sessions = self._sessions[key[0]]
        sessions.remove(key[1])
        if not sessions:
            del self._sessions[key[0]]

    def _welcome(self, key: WorkerKey, at: float) -> WorkerHealth:
        vitals = VitalSigns(*key, at, self.settings.loops)
        worker = WorkerHealth(vitals, (), HealthState.HEALTHY, at, "first seen")
        self._workers[worker.key] = worker
        self._sessions.setdefault(vitals.agent_id, []).append(vitals.session_id)
        return worker

    def _forget_ended(self, now: float) -> None:
        ended = self._ended
        while ended and (len(ended) > ENDED_KEPT or ended[0][0] + ENDED_KEPT_SECONDS <= now):
            at, key = ended.popleft()
            worker = self._workers.get(key)
            if worker is not None and worker.vitals.ended_at == at:
                self.forget(key)

    # -- looking ------------------------------------------------------------------------------------

    def _look(self, worker: WorkerHealth, at: float, now: float) -> list[AgentEvent]:
        """Examine a worker because time has passed, and set its next deadline."""
        due = worker.deadline
        said = self._examine(worker, at, now, 0.0 if due is None else now - due)
        worker.deadline = None
        self._schedule(worker, at)
        return said

    def _schedule(self, worker: WorkerHealth, at: float) -> None:
        """Set the deadline if it is sooner than the one in the heap; else it is found when that comes up."""
        due = self._next(worker, at)
        if due is not None and (worker.deadline is None or due < worker.deadline):
            worker.deadline = due
            heappush(self._heap, (due, worker.key))

    def _next(self, worker: WorkerHealth, at: float) -> float | None:
        v = worker.vitals
        if v.ended_at is not None:
            return None
        grace = grace_until(v, self.settings)
        due = grace if worker.findings and grace > at else None
        if v.waiting is not None:
            return due
        # At the latest when the shortest limit has passed: then no change of phase can come too soon.
        for moment in (*moments(v, self.settings), v.last_activity + self._shortest):
            if moment > at and (due is None or moment < due):
                due = moment
        return due

    def _examine(self, worker: WorkerHealth, at: float, now: float, delay: float) -> list[AgentEvent]:
        """Run the detectors at ``at`` and say at ``now`` what changed; the change was due ``delay`` ago."""
        v = worker.vitals
        found = detect(v, self.settings, at)
        state = health_state(v, found, self.settings, at)
        before = worker.findings
        worker.findings = tuple(found)
        said: list[AgentEvent] = []
        if found or before:
            said = self._differences(v, before, found, now, delay)
        if state is not worker.state:
            lead = worst(found)
            reason = lead.evidence if lead else _REASONS.get(v.status.value, "no findings are left")
            said.append(
                _say(
                    EventType.HEALTH_STATE_CHANGED,
                    v,
                    now,
                    {
                        "from": worker.state.value,
                        "to": state.value,
                        "reason": reason,
                        "findings": [finding.to_dict() for finding in found],
                    },
                )
            )
            worker.state, worker.state_since, worker.reason = state, now, reason
        return said

    def _differences(
        self, v: VitalSigns, before: Sequence[Finding], found: Sequence[Finding], now: float, delay: float
    ) -> list[AgentEvent]:
        said = []
        old = {finding.kind: finding for finding in before}
        for finding in found:
            known = old.pop(finding.kind, None)
            if known is None and self._on_delay is not None:
                self._on_delay(finding.kind, max(0.0, delay))
            if (
                known is None
                or finding.severity.rank > known.severity.rank
                or (finding.ticket and not known.ticket)
            ):
                said.append(_say(EventType.FINDING_OPENED, v, now, finding.to_dict()))
        said.extend(_say(EventType.FINDING_CLEARED, v, now, gone.to_dict()) for gone in old.values())
        return said


_REASONS: Final = {
    "completed": "the session is completed",
    "failed": "the session has failed",
    "cancelled": "the session was cancelled",
    "terminated": "the worker was terminated",
}


def _say(type_: EventType, v: VitalSigns, now: float, data: dict[str, Any]) -> AgentEvent:
    return AgentEvent(
        type=type_,
        time=now,
        agent_id=v.agent_id,
        session_id=v.session_id,
        incarnation_id=v.incarnation_id,
        graph_id=v.graph_id,
        node_id=v.node_id,
        trace_id=v.last_trace_id,
        span_id=v.last_span_id,
        data=data,
    )
