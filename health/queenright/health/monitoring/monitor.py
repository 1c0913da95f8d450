"""
The monitor keeps the vital signs of every worker, and checks each worker when its health may change.

It does no I/O and reads no clock: events go in, health events come out. A heap holds, for each worker, the
earliest time at which silence alone could change its health. Activity usually defers that time, so the entry
is recomputed only when it is due. Events are therefore cheap, and an idle worker costs nothing.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any, Final, Protocol

from queenright.health.detection.deadlines import (
    ProcessSign,
    find_death_time,
    find_end_time,
    find_grace_end,
    find_shortest_limit,
    list_change_times,
)
from queenright.health.detection.detectors import detect, detect_shadow, is_suspicious
from queenright.health.detection.health_state import (
    HealthState,
    describe_failed_runs,
    describe_failures,
    determine_state,
    has_too_many_failures,
    is_allowed_transition,
)
from queenright.health.detection.spending import DailySpending, SpentElsewhere
from queenright.health.detection.stall_clock import find_stall_clock
from queenright.health.findings import Finding, FindingKind, WorkerKey, find_worst
from queenright.health.settings import CLOCK_TOLERANCE_SECONDS, HealthSettings
from queenright.health.vitals.children import Children
from queenright.health.vitals.incarnation import end_session, undo_termination
from queenright.health.vitals.learned_clocks import LearnedClocks
from queenright.health.vitals.session_outcome import WorkerStatus
from queenright.health.vitals.vital_events import (
    TERMINATED,
    WORK_HANDLERS,
    find_work_start,
    is_settled_by_person,
    note_origin,
)
from queenright.health.vitals.vital_facts import NO_BREAKERS, OpenBreakers, parse_dollars
from queenright.health.vitals.vital_signs import ABOUT_WORKERS, WORKER_EVENTS, VitalSigns
from queenright.instrumentation.names import Phase
from queenright.runtime.events import AgentEvent, EventType

MAX_ENDED_SESSIONS: Final = 10_000
"""The maximum number of ended sessions in memory. The oldest are removed first."""

ENDED_SESSION_SECONDS: Final = 3600.0

MAX_PROCESSES: Final = 100_000
"""The maximum number of processes whose last activity is in memory. The oldest are removed first."""

END_REPEATED_SECONDS: Final = 5.0
"""How many seconds a worker that ends keeps sending its end while the service is unreachable."""

# After these events a deadline may come sooner than the shortest limit.
_MOVES_DEADLINE: Final = frozenset(
    {
        EventType.AGENT_HEARTBEAT,
        EventType.CHECKPOINT_SAVED,
        EventType.CLIENT_INPUT_RECEIVED,
        EventType.EXECUTION_RESUMED,
        EventType.EXECUTION_STARTED,
        EventType.OUTPUT_REPORTED,
        EventType.WORKER_WAITING,
    }
)
# Only these events can change what a counting detector finds.
_COUNTED_EVENTS: Final = frozenset(
    {
        EventType.BREAKER_REPORTED,
        EventType.RESOURCE_REPORTED,
        EventType.STEP_COMPLETED,
        EventType.LLM_CALL_COMPLETED,
        EventType.TOOL_CALL_COMPLETED,
        EventType.OUTPUT_REPORTED,
    }
)
# These are used for every event, and a module global is faster than a class attribute.
_TOOL_STARTED: Final = EventType.TOOL_CALL_STARTED
_MODEL_ENDED: Final = EventType.LLM_CALL_COMPLETED
_TOOL_ENDED: Final = EventType.TOOL_CALL_COMPLETED
_RENAMED: Final = EventType.AGENT_RENAMED
_STARTED: Final = EventType.EXECUTION_STARTED
_END_EVENTS: Final = frozenset({EventType.EXECUTION_COMPLETED, EventType.EXECUTION_FAILED})
_HEALTHY: Final = HealthState.HEALTHY
_FAILING: Final = HealthState.FAILING
_TERMINATION: Final = WorkerStatus.TERMINATED
_SILENCE_KINDS: Final = frozenset(
    {
        FindingKind.STALL,
        FindingKind.TOOL_TIMEOUT,
        FindingKind.HEARTBEAT_MISSING,
        FindingKind.CHECKPOINT_STALE,
        FindingKind.NO_TOOL_CALLS,
        FindingKind.NO_TOKENS,
        FindingKind.OUTPUT_UNCHANGED,
    }
)
EVENTS_THAT_ADD_WORKERS: Final = frozenset(
    {EventType.AGENT_TERMINATED, EventType.RECOVERY_FAILED, EventType.RECOVERY_COMPLETED}
)
"""Health events that add an unknown worker. Other health events about an unknown worker are ignored."""


@dataclass(slots=True, eq=False)
class WorkerHealth:
    """The health of one worker: vital signs, findings, state, and when the state began."""

    vitals: VitalSigns
    findings: tuple[Finding, ...]
    state: HealthState
    state_since: float
    reason: str
    deadline: float | None = None
    """When the worker is checked next: the time of its valid entry in the heap."""
    trouble_since: float | None = None
    """When the worker became stuck or failing; None while it is neither."""
    incarnation_number: int = 1
    """The incarnation (``VitalSigns.incarnation_count``) in which the state last changed."""
    shadow: tuple[Finding, ...] = ()
    """Findings of detectors in shadow mode, which have no effect."""
    checked_at: float = -math.inf
    """The time of the last check, or of the event that caused it."""
    unknown_fields: frozenset[str] = frozenset()
    """Fields of the worker's summary that are null, because its source cannot provide them."""
    key: WorkerKey = field(init=False)
    """The agent and the session. All references to the worker share this object."""

    def __post_init__(self) -> None:
        self.key = (self.vitals.agent_id, self.vitals.session_id)

    @property
    def fleet_state(self) -> HealthState | None:
        """
        The state that counts in fleet totals, or None once the run is over.

        A worker that has ended still counts as failing in two cases: if its recovery was abandoned, until a
        person resolves its ticket; and if it represents too many failed runs of its agent, until a run
        completes.
        """
        if self.vitals.ended_at is None or self.state is HealthState.FAILING:
            return self.state
        is_given_up = any(finding.kind is FindingKind.RECOVERY_FAILED for finding in self.findings)
        return HealthState.FAILING if is_given_up else None


@dataclass(frozen=True, slots=True)
class FailedRuns:
    """Consecutive failed runs of an agent."""

    count: int = 0
    since: float = 0.0
    """When the first of them failed."""
    session_id: str = ""
    """
    The session whose failure exceeded the limit, which represents all failed runs. Empty below the limit.
    """


def as_terminated(event: AgentEvent) -> AgentEvent:
    """Return the end of a run as a termination, regardless of what its process reported."""
    return replace(event, type=EventType.EXECUTION_FAILED, data={"error_type": TERMINATED})


def _make_run_key(event: AgentEvent) -> tuple[str, str, str]:
    return event.agent_id, event.session_id, event.incarnation_id


@dataclass(frozen=True, slots=True)
class SweepPart:
    """The result of one part of a sweep."""

    worker_count: int
    """The number of checked workers that have not ended."""
    is_last: bool
    """Whether this was the last part."""
    events: list[AgentEvent]
    faults: list[str]
    """A line for each worker whose check failed. The other workers were checked."""


class WorkerRecorder(Protocol):
    """Records workers for a snapshot; see ``monitor_snapshot``."""

    def record(self, worker: WorkerHealth) -> None:
        """Record a worker that is about to change, unless it is new or already recorded."""

    def discard(self) -> None:
        """Discard the snapshot, because all workers are about to change."""


class HealthMonitor:
    """
    Computes findings and states from the events of workers.

    Not thread-safe: it belongs to one event loop. Methods take the time as an argument, so equal events and
    times give equal results.

    Args:
        settings: The thresholds.
        on_delay: Called with the kind of each new finding and its delay in seconds.
        on_shadow: Called with each new or worse finding of a detector in shadow mode.
        spent_elsewhere: Returns the spending in parts of the fleet that other services monitor.
        is_stopping: Returns whether an incarnation of a worker is being terminated. If so, its end counts as
            a termination.
    """

    def __init__(
        self,
        settings: HealthSettings,
        *,
        on_delay: Callable[[FindingKind, float], None] | None = None,
        on_shadow: Callable[[WorkerKey, Finding], None] | None = None,
        spent_elsewhere: SpentElsewhere | None = None,
        is_stopping: Callable[[WorkerKey, str], bool] = lambda key, incarnation_id: False,
    ) -> None:
        self.snapshot: WorkerRecorder | None = None
        """Receives each worker before it changes, while a snapshot is taken."""
        self._on_delay = on_delay
        self._on_shadow = on_shadow
        self._is_stopping = is_stopping
        self._workers: dict[WorkerKey, WorkerHealth] = {}
        self.today = DailySpending(spent_elsewhere)
        """Today's spending."""
        self._clocks: dict[str, LearnedClocks] = {}
        self.replace_settings(settings)
        self._sessions: dict[str, list[str]] = {}
        self._children = Children()
        self._heap: list[tuple[float, WorkerKey]] = []
        self._ends: deque[tuple[float, float, WorkerKey]] = deque()
        self._breakers: dict[str, OpenBreakers] = {}
        self._failed_runs: dict[str, FailedRuns] = {}
        self._terminated_runs: dict[tuple[str, str, str], None] = {}
        self._counts_runs = True
        self._signs: dict[str, ProcessSign] = {}
        self._new_keys: dict[WorkerKey, WorkerKey] = {}
        self._unswept: list[WorkerKey] | None = None
        self._now = 0.0
        self.listening_since = 0.0
        """When the calls of ``record_process_alive`` began. Earlier activity of processes is unknown."""

    def replace_settings(self, settings: HealthSettings) -> None:
        """
        Replace the thresholds. The next sweep applies them.

        The buffer sizes of known workers do not change.
        """
        self._discard_snapshot()
        self.settings = settings
        self._shortest = find_shortest_limit(settings)
        self._has_shadows = settings.has_shadows
        self._no_tokens = settings.health_check.no_tokens_seconds
        self._degraded_after = settings.health_check.checkpoint_degraded_seconds
        for worker in self._workers.values():
            worker.vitals.replace_settings(settings)
            if not settings.has_shadows:
                worker.shadow = ()
            worker.vitals.clocks = self._get_learned_clocks(worker.vitals.agent_id)

    def _record(self, worker: WorkerHealth) -> None:
        """Record a worker for the snapshot, before it changes."""
        if self.snapshot is not None:
            self.snapshot.record(worker)

    def _discard_snapshot(self) -> None:
        """Discard the snapshot, before all workers change."""
        if self.snapshot is not None:
            self.snapshot.discard()

    # -- time and events ----------------------------------------------------------------------------

    def apply(self, event: AgentEvent, now: float) -> list[AgentEvent]:
        """
        Apply one event and return the health events that follow.

        The event's time is used if it is at most the clock tolerance before ``now``, otherwise ``now``.
        Events that are not about workers are ignored, including those of the monitor itself.
        """
        kind = event.type
        if kind is _RENAMED:
            return self._rename(event, now)
        if (kind not in WORKER_EVENTS and kind not in ABOUT_WORKERS) or not event.agent_id:
            return []
        at = event.time
        if at > now or at < now - CLOCK_TOLERANCE_SECONDS:
            at = now
        if now > self._now:
            self._now = now
        if self._ends:
            self._forget_ended(now)
        if kind not in WORKER_EVENTS:
            if kind is EventType.TICKET_RESOLVED and self._counts_runs:
                self._settle_failed_runs(event)
            elif kind is EventType.AGENT_TERMINATED:
                self.restore_terminated_runs([_make_run_key(event)])
            return self._apply_action(event, at, now)
        key = (event.agent_id, event.session_id)
        worker = self._workers.get(key)
        if worker is not None and is_late_work(event, worker.vitals):
            at = event.time
        events: list[AgentEvent] = []
        is_new = worker is None
        if worker is None:
            worker = self._add_worker(key, at)
        if self.snapshot is not None:
            self.snapshot.record(worker)
        if worker.deadline is not None and worker.deadline <= at:
            # The deadline passed without a check. The event must not hide the silence before it.
            events = self._check(worker, at, now)
        v = worker.vitals
        previous_end, previous_status = v.ended_at, v.status
        if kind in _END_EVENTS and (
            self._is_stopping(key, event.incarnation_id or v.incarnation_id)
            or self._ends_terminated_run(v, event)
        ):
            event = as_terminated(event)
        if v.status is _TERMINATION and self._continues_after_termination(v, event, now):
            undo_termination(v, at)
        v.apply(event, at)
        self._add_cost(v, event)
        if kind is _STARTED:
            self._terminated_runs.pop(_make_run_key(event), None)
            events += self._join_parents(worker, event, at, now)
        deadline = worker.deadline
        if (
            deadline is None
            or deadline > v.last_activity + self._shortest
            or kind in _MOVES_DEADLINE
            or (kind is _TOOL_STARTED and event.data.get("timeout") is not None)
            # While a tool runs, these clocks stand still. Its end may make them due.
            or (
                kind is _TOOL_ENDED
                and (
                    (v.tokens_from is not None and deadline > v.tokens_from + self._no_tokens)
                    or (v.saved_from is not None and deadline > v.saved_from + self._degraded_after)
                )
            )
        ):
            self._schedule(worker, at)
        if v.ended_at is not None and (v.ended_at != previous_end or v.status is not previous_status):
            events += self._end_session(worker, at, now)
        elif (
            worker.findings
            or worker.shadow
            or worker.state is not _HEALTHY
            or ((kind in _COUNTED_EVENTS or v.mcp_servers) and is_suspicious(v, self.settings))
            or (v.ended_at is not None and v.llm_errors)
            or (is_new and v.breakers)
            or (v.heartbeat_late and kind in _MOVES_DEADLINE)
        ):
            events += self._examine(worker, at, now, now - at)
            if worker.findings and find_grace_end(v, self.settings) > at:
                self._schedule(worker, at)
        return events

    def replay(self, event: AgentEvent, now: float, *, counts_runs: bool = True) -> None:
        """
        Apply one past event without checking its worker. Call ``sweep`` afterwards to check all workers.

        The event is timed as in ``apply``. This is cheaper, because intermediate states are not computed.
        Only a worker that has ended is checked immediately, because it may be forgotten soon. Without
        ``counts_runs``, failed runs are not counted, because ``restore_failed_runs`` sets their number.
        """
        self._counts_runs = counts_runs
        try:
            self._replay(event, now)
        finally:
            self._counts_runs = True

    def _replay(self, event: AgentEvent, now: float) -> None:
        if event.type not in WORKER_EVENTS:
            self.apply(event, now)
            return
        if not event.agent_id:
            return
        at = event.time
        if at > now or at < now - CLOCK_TOLERANCE_SECONDS:
            at = now
        self._now = max(self._now, now)
        self._forget_ended(now)
        key = (event.agent_id, event.session_id)
        worker = self._workers.get(key) or self._add_worker(key, at)
        v = worker.vitals
        if is_late_work(event, v):
            at = event.time
        previous_end, previous_status = v.ended_at, v.status
        if event.type in _END_EVENTS and self._ends_terminated_run(v, event):
            event = as_terminated(event)
        if v.status is _TERMINATION and self._continues_after_termination(v, event, now):
            undo_termination(v, at)
        v.apply(event, at)
        self._add_cost(v, event)
        if event.type is _STARTED:
            self._terminated_runs.pop(_make_run_key(event), None)
            self._children.join(key, event)
        if v.ended_at is not None and (v.ended_at != previous_end or v.status is not previous_status):
            self._end_session(worker, at, now)

    def _add_cost(self, v: VitalSigns, event: AgentEvent) -> None:
        if event.type is _MODEL_ENDED and (cost := parse_dollars(event.data.get("cost_usd"))):
            v.spent_today = self.today.add(v.agent_id, cost, event.time)

    def _ends_terminated_run(self, v: VitalSigns, event: AgentEvent) -> bool:
        """
        Return whether an event reports the end of a run that was terminated, even if the run continued or was
        removed.
        """
        return _make_run_key(event) in self._terminated_runs or (
            v.outlived_termination and event.incarnation_id in ("", v.incarnation_id)
        )

    def _continues_after_termination(self, v: VitalSigns, event: AgentEvent, now: float) -> bool:
        """
        Return whether an event shows that a worker continues after its termination.

        The event must report work of the same incarnation that began after the end, by both the sender's and
        the service's clock, and by more than the clock tolerance. Calls that were running at the end, and new
        executions, do not count.
        """
        if v.ended_at is None or v.has_new_start or event.incarnation_id not in ("", v.incarnation_id):
            return False
        began = find_work_start(event)
        return began is not None and min(began, now) > v.ended_at + CLOCK_TOLERANCE_SECONDS

    def advance(self, now: float, limit: int = sys.maxsize) -> list[AgentEvent]:
        """
        Check the workers whose deadline has passed, and return the health events that follow.

        At most ``limit`` workers are checked. The next call checks the others: until then, ``next_deadline``
        is in the past.
        """
        if now > self._now:
            self._now = now
        events: list[AgentEvent] = []
        heap = self._heap
        while heap and heap[0][0] <= now and limit > 0:
            due_at, key = heappop(heap)
            worker = self._workers.get(key)
            if worker is not None and worker.deadline == due_at:
                events += self._check(worker, now, now)
                limit -= 1
        self._forget_ended(now)
        return events

    def sweep_part(self, now: float, limit: int) -> SweepPart:
        """
        Check the next ``limit`` workers, in case a deadline was missed.

        A sweep covers the workers that were known at its first part. It has parts so that the event loop can
        run other work in between.
        """
        if now > self._now:
            self._now = now
        if self._unswept is None:
            self._unswept = list(self._workers)
        remaining, events, faults, checks = self._unswept, list[AgentEvent](), list[str](), 0
        for key in remaining[-limit:]:
            worker = self._workers.get(key)
            if worker is None:
                continue
            try:
                events += self._check(worker, now, now)
                # Workers that have ended are not monitored, so they do not count.
                checks += not worker.vitals.has_ended
            except Exception as error:
                faults.append(f"worker {key[0]!r}, session {key[1]!r} cannot be checked: {error!r}")
        del remaining[-limit:]
        if not remaining:
            self._unswept = None
        return SweepPart(checks, not remaining, events, faults)

    def sweep(self, now: float) -> tuple[int, list[AgentEvent]]:
        """Check every worker. Return how many have not ended, and the health events."""
        self._unswept = None
        part = self.sweep_part(now, max(1, len(self._workers)))
        return part.worker_count, part.events

    def next_deadline(self) -> float | None:
        """Return the earliest time at which ``advance`` has work to do, or None if it has none."""
        heap = self._heap
        while heap:
            due_at, key = heap[0]
            worker = self._workers.get(key)
            if worker is not None and worker.deadline == due_at:
                return due_at
            heappop(heap)
        return None

    def handle_clock_jump(self, now: float) -> None:
        """
        Restart every silence, because the host slept or its clock was set, so that ages are meaningless.

        A silence with a finding keeps its age, so that a clock jump does not clear the finding. A state also
        keeps its age, so that actions that are scheduled relative to its start do not move.
        """
        self._discard_snapshot()
        shift = now - self._now
        for worker in self._workers.values():
            worker.vitals.source.restart()
            if any(finding.kind in _SILENCE_KINDS for finding in (*worker.findings, *worker.shadow)):
                worker.vitals.shift_clocks(shift, now)
            else:
                worker.vitals.restart_clocks(now)
            worker.checked_at += shift
            worker.state_since = min(worker.state_since + shift, now)
            if worker.trouble_since is not None:
                worker.trouble_since = min(worker.trouble_since + shift, now)
        self._ends = deque((min(since, now), min(ended_at, now), key) for since, ended_at, key in self._ends)
        self._restart_at(now)

    def exclude_outage(self, since: float, now: float) -> None:
        """
        Exclude the time from ``since`` to ``now``, when the service was down, from every age.

        A silence is as long as it was at ``since``. A worker whose heartbeats do not resume may have ended in
        the meantime, and its report of that is lost.
        """
        self._discard_snapshot()
        for worker in self._workers.values():
            if worker.vitals.ended_at is None:
                worker.vitals.shift_clocks(now - since, now)
                worker.checked_at = min(worker.checked_at + now - since, now)
                if now - since > END_REPEATED_SECONDS:
                    worker.vitals.away = (since, now)
        self._restart_at(now)

    def _restart_at(self, now: float) -> None:
        self._now = now
        self._restart_signs(now)
        self._heap.clear()
        for worker in self._workers.values():
            worker.deadline = self._find_next_check(worker, now)
            if worker.deadline is not None:
                self._heap.append((worker.deadline, worker.key))
        heapify(self._heap)

    def restart_processes(self, now: float) -> None:
        """Restart the silence of every process, because events sent during the outage are unknown."""
        self.listening_since = now
        self._restart_signs(now)

    def _restart_signs(self, now: float) -> None:
        self._signs = {key: ProcessSign(now, now, sign.interval) for key, sign in self._signs.items()}

    def record_process_alive(self, incarnation_id: str, now: float, interval: float | None = None) -> None:
        """
        Record that a process is running, even if the event that shows it concerns none of its workers.

        Args:
            now: When the event arrived.
            interval: The seconds between reports of open work, if the event is such a report.
        """
        previous = self._signs.pop(incarnation_id, None)
        if previous is None:
            while len(self._signs) >= MAX_PROCESSES:
                del self._signs[next(iter(self._signs))]
        if interval is not None:
            sign = ProcessSign(now, now, interval)
        else:
            sign = ProcessSign(now) if previous is None else previous._replace(at=now)
        self._signs[incarnation_id] = sign

    def _get_process_sign(self, v: VitalSigns) -> ProcessSign:
        return self._signs.get(v.incarnation_id) or ProcessSign(self.listening_since)

    def _find_end_time(self, v: VitalSigns) -> float | None:
        """Return when a silent worker counts as ended, or None."""
        end_time = find_end_time(v, self.settings, self._get_process_sign(v))
        if end_time is None or not v.is_foreign or v.open_tools or v.llm_open:
            return end_time
        clock = find_stall_clock(v, self.settings)
        return clock.ticket_due if clock is not None and self._has_successor(v) else end_time

    def _has_successor(self, v: VitalSigns) -> bool:
        """
        Return whether the process has started a later run of the agent.

        This is known only if the process's runs do not overlap.
        """
        all_runs = (session.vitals for session in self.of_agent(v.agent_id))
        runs = sorted(
            (run for run in all_runs if run.incarnation_id == v.incarnation_id),
            key=lambda run: run.incarnation_started,
        )
        is_serial = all(
            earlier.last_activity <= later.incarnation_started for earlier, later in pairwise(runs)
        )
        return is_serial and runs[-1] is not v

    # -- known workers ------------------------------------------------------------------------------

    def workers(self) -> Iterable[WorkerHealth]:
        """Return every known worker."""
        return self._workers.values()

    def keys(self) -> Iterable[WorkerKey]:
        """Return the agent and session of every known worker."""
        return self._workers.keys()

    def get(self, agent_id: str, session_id: str | None = None) -> WorkerHealth | None:
        """
        Return one worker, or None if it is unknown.

        Without a session, a worker that has not ended is preferred, then the most recently active one.
        """
        if session_id is not None:
            return self._workers.get((agent_id, session_id))
        candidates = self.of_agent(agent_id)
        return max(candidates, key=lambda w: (not w.vitals.has_ended, w.vitals.last_event), default=None)

    def of_agent(self, agent_id: str) -> list[WorkerHealth]:
        """Return the workers of one agent, one for each session."""
        return [self._workers[agent_id, session] for session in self._sessions.get(agent_id, ())]

    def find(self, agent_id: str, session_id: str | None = None) -> WorkerHealth | None:
        """
        Return one worker like ``get``, but also find it by a former name. Without a session, the worker that
        was renamed last is preferred.
        """
        worker = self.get(agent_id, session_id)
        if worker is None and session_id is not None:
            return self._workers.get(self.current_key((agent_id, session_id)))
        if worker is None:
            former_keys = (key for key in reversed(self._new_keys) if key[0] == agent_id)
            worker = next(
                (target for key in former_keys if (target := self._workers.get(self.current_key(key)))), None
            )
        return worker

    def current_key(self, key: WorkerKey) -> WorkerKey:
        """Return the key of a worker after all of its renames."""
        # This cannot loop forever, because a name that is in use again is not a former name.
        while key in self._new_keys:
            key = self._new_keys[key]
        return key

    def foreign_runs(self) -> Iterator[tuple[str, str, WorkerKey]]:
        """Yield each running foreign run: process, current or former session, and current key."""
        former_sessions: dict[WorkerKey, list[str]] = {}
        for old_key in self._new_keys:
            former_sessions.setdefault(self.current_key(old_key), []).append(old_key[1])
        for key, worker in self._workers.items():
            v = worker.vitals
            if v.is_foreign and not v.has_ended:
                for session in {v.session_id, *former_sessions.get(key, ())}:
                    yield v.incarnation_id, session, key

    def dead_from(self, key: WorkerKey) -> float | None:
        """
        Return when a worker counts as dead if it stays silent.

        Return 0 if the worker is unknown or has ended, and None if it waits, because it may then be silent
        for long.
        """
        worker = self._workers.get(key)
        if worker is None or worker.vitals.has_ended:
            return 0.0
        return find_death_time(worker.vitals, self.settings)

    def forget(self, key: WorkerKey) -> None:
        """Remove a worker, if it is known."""
        worker = self._workers.get(key)
        if worker is None:
            return
        self._record(worker)
        del self._workers[key]
        sessions = self._sessions[key[0]]
        sessions.remove(key[1])
        if not sessions:
            del self._sessions[key[0]]
            if len(self._clocks) > MAX_ENDED_SESSIONS:
                self._clocks.pop(key[0], None)

    def _get_learned_clocks(self, agent_id: str) -> LearnedClocks | None:
        """Return the learned clocks of an agent, which all of its sessions share."""
        if self.settings.learned_clocks.mode == "off":
            return None
        clocks = self._clocks.get(agent_id)
        if clocks is None:
            clocks = self._clocks[agent_id] = LearnedClocks()
        return clocks

    def _add_worker(self, key: WorkerKey, at: float) -> WorkerHealth:
        sessions = self._sessions.get(key[0])
        if sessions:  # share one string for the agent's name
            key = (self._workers[key[0], sessions[0]].vitals.agent_id, key[1])
        vitals = VitalSigns(*key, at, self.settings)
        vitals.clocks = self._get_learned_clocks(key[0])
        if self._breakers:
            vitals.breakers = self._breakers.get(vitals.agent_id, NO_BREAKERS)
        self._assign_failed_runs(vitals)
        self._new_keys.pop(key, None)
        worker = WorkerHealth(vitals, (), HealthState.HEALTHY, at, "first seen")
        self._workers[worker.key] = worker
        if sessions:
            sessions.append(vitals.session_id)
        else:
            self._sessions[vitals.agent_id] = [vitals.session_id]
        return worker

    def _rename(self, event: AgentEvent, now: float) -> list[AgentEvent]:
        """
        Rename a worker whose telemetry named its agent or session only after its first event.

        Its findings are cleared under the old name and opened again under the new name. If a worker with the
        new name is known, the two are merged: the vital signs with the latest activity are kept, and the
        totals are added.
        """
        old = (event.agent_id, event.session_id)
        new = (str(event.data.get("agent_id") or old[0]), str(event.data.get("session_id") or old[1]))
        worker = self._workers.get(old)
        if worker is None or new == old:
            return []
        events = [
            health_event(EventType.FINDING_CLEARED, worker.vitals, now, finding.to_dict())
            for finding in worker.findings
        ]
        if worker.state is not _HEALTHY:
            change = {"from": worker.state.value, "to": _HEALTHY.value, "findings": []}
            change["reason"] = f"the worker is now {new[0]!r}, session {new[1]!r}"
            events.append(health_event(EventType.HEALTH_STATE_CHANGED, worker.vitals, now, change))
        self.forget(old)
        while len(self._new_keys) >= MAX_ENDED_SESSIONS:
            del self._new_keys[next(iter(self._new_keys))]
        self._new_keys[old] = new
        self.today.rename(old[0], new[0], worker.vitals.cost_usd or 0.0)
        vitals, target = worker.vitals, self._workers.get(new)
        if target is None:
            target = self._add_worker(new, now)
            target.incarnation_number = vitals.incarnation_count
        else:
            self._record(target)
            older_vitals, vitals = sorted((target.vitals, vitals), key=lambda session: session.last_activity)
            vitals.absorb(older_vitals)
        vitals.rename(target.vitals.agent_id, target.vitals.session_id)
        note_origin(vitals, event.data)
        self._children.rename(vitals, old, new)
        vitals.clocks = self._get_learned_clocks(target.vitals.agent_id)
        target.vitals = vitals
        self._assign_failed_runs(vitals)
        target.deadline = None
        if vitals.ended_at is not None:
            self._ends.append((now, vitals.ended_at, new))
        events += self._examine(target, now, now, 0.0)
        self._schedule(target, now)
        return events

    def _forget_ended(self, now: float) -> None:
        ends = self._ends
        while ends and (len(ends) > MAX_ENDED_SESSIONS or ends[0][0] + ENDED_SESSION_SECONDS <= now):
            since, ended_at, key = ends.popleft()
            worker = self._workers.get(key)
            if worker is None or worker.vitals.ended_at != ended_at:
                continue
            has_open_ticket = any(finding.ticket for finding in worker.findings)
            if has_open_ticket and since + ENDED_SESSION_SECONDS <= now and len(ends) < MAX_ENDED_SESSIONS:
                ends.append((now, ended_at, key))  # its open ticket still needs it
            else:
                self.forget(key)

    # -- actions on workers -------------------------------------------------------------------------

    def _apply_action(self, event: AgentEvent, at: float, now: float) -> list[AgentEvent]:
        """Apply an event of the health layer. It is not an activity of the worker, so it resets no clock."""
        events: list[AgentEvent] = []
        for worker in self._find_affected_workers(event, at):
            self._record(worker)
            previous_end = worker.vitals.ended_at
            if worker.deadline is not None and worker.deadline <= at:
                events += self._check(worker, at, now)
            worker.vitals.apply(event, at)
            ended_at = worker.vitals.ended_at
            if ended_at is not None and ended_at != previous_end:
                events += self._end_session(worker, at, now)
                continue
            events += self._examine(worker, at, now, now - at)
            self._schedule(worker, at)
        return events

    def _find_affected_workers(self, event: AgentEvent, at: float) -> list[WorkerHealth]:
        agent, session = event.agent_id, event.session_id
        if event.type is EventType.CIRCUIT_BREAKER_STATE_CHANGED:
            # A breaker belongs to an agent, so it affects all of its sessions, including future ones.
            if open_breakers := self._breakers.get(agent, NO_BREAKERS).after(event.data):
                self._breakers[agent] = open_breakers
            else:
                self._breakers.pop(agent, None)
            return [worker for worker in self.of_agent(agent) if worker.vitals.ended_at is None]
        if event.type is EventType.RECOVERY_COMPLETED:
            agent = str(event.data.get("new_agent_id") or agent)
            session = str(event.data.get("new_session_id") or session)
        worker = self._workers.get((agent, session))
        if worker is None and event.type in EVENTS_THAT_ADD_WORKERS:
            worker = self._add_worker((agent, session), at)
        return [] if worker is None else [worker]

    def _end_session(self, worker: WorkerHealth, at: float, now: float) -> list[AgentEvent]:
        ended_at = worker.vitals.ended_at
        assert ended_at is not None
        self._ends.append((at, ended_at, worker.key))
        return self._count_failed_runs(worker.vitals, at, now) + self._examine(worker, at, now, now - at)

    def _count_failed_runs(self, v: VitalSigns, at: float, now: float) -> list[AgentEvent]:
        """
        Count consecutive failed runs of an agent. A run that was stopped does not change the count.

        The session that exceeds the limit represents all failed runs until a run completes, so that people
        are notified once.
        """
        if v.status not in (WorkerStatus.FAILED, WorkerStatus.COMPLETED):
            return []
        is_repeated = v.counted_end == (v.incarnation_count, v.status)
        v.counted_end = (v.incarnation_count, v.status)
        if is_repeated or not self._counts_runs:
            return []
        runs = self._failed_runs.pop(v.agent_id, FailedRuns())
        worker = self._workers.get((v.agent_id, runs.session_id))
        count = 0
        if v.status is WorkerStatus.FAILED:
            count, since = runs.count + 1, runs.since if runs.count else at
            if worker is None and count > self.settings.health_check.consecutive_failures:
                worker = self._workers[v.agent_id, v.session_id]
            session_id = "" if worker is None else worker.vitals.session_id
            self._failed_runs[v.agent_id] = FailedRuns(count, since, session_id)
            if len(self._failed_runs) > MAX_ENDED_SESSIONS:
                del self._failed_runs[next(iter(self._failed_runs))]
        if worker is None:
            return []
        self._record(worker)
        self._assign_failed_runs(worker.vitals)
        return [] if worker.vitals is v else self._examine(worker, at, now, now - at)

    def _assign_failed_runs(self, v: VitalSigns) -> None:
        """Attach the failed runs of the agent to the session that represents them."""
        runs = self._failed_runs.get(v.agent_id)
        if runs is not None and runs.session_id == v.session_id:
            v.failed_runs, v.runs_failed_since = runs.count, runs.since
        else:
            v.failed_runs = 0

    def _settle_failed_runs(self, event: AgentEvent) -> None:
        """Restart the count of failed runs, because a person has resolved their ticket."""
        runs = self._failed_runs.get(event.agent_id)
        if runs is None or runs.session_id != event.session_id or not is_settled_by_person(event.data):
            return
        del self._failed_runs[event.agent_id]
        if (worker := self._workers.get((event.agent_id, runs.session_id))) is not None:
            self._record(worker)
            self._assign_failed_runs(worker.vitals)

    def failed_runs(self, agent_id: str) -> FailedRuns:
        """Return the consecutive failed runs of an agent."""
        return self._failed_runs.get(agent_id, FailedRuns())

    def restore_failed_runs(self, runs: Mapping[str, FailedRuns]) -> None:
        """Set the consecutive failed runs of each agent before the replayed events."""
        self._failed_runs = dict(runs)

    def restore_terminated_runs(self, runs: Iterable[tuple[str, str, str]]) -> None:
        """
        Add runs that were terminated, as ``(agent, session, incarnation)``. Their ends are not failures.
        """
        self._terminated_runs.update(dict.fromkeys(runs))
        while len(self._terminated_runs) > MAX_ENDED_SESSIONS:
            del self._terminated_runs[next(iter(self._terminated_runs))]

    # -- checking -----------------------------------------------------------------------------------

    def _check(self, worker: WorkerHealth, at: float, now: float) -> list[AgentEvent]:
        """Examine a worker whose deadline has passed, and set its next deadline."""
        self._record(worker)
        self._update_children_activity(worker.vitals, _find_check_time(worker, at, now))
        end_time = self._find_end_time(worker.vitals)
        if end_time is not None and end_time <= at:
            end_session(worker.vitals, WorkerStatus.UNKNOWN, end_time)
            worker.deadline = None
            return self._end_session(worker, at, now)
        due_at = worker.deadline
        events = self._examine(worker, at, now, 0.0 if due_at is None else now - due_at)
        worker.deadline = None
        self._schedule(worker, at)
        return events

    def _update_children_activity(self, v: VitalSigns, at: float) -> None:
        """Record when the worker's children were last active. Children have their own limits."""
        clock = find_stall_clock(v, self.settings)
        if clock is None or at < clock.due or clock.phase not in (Phase.TOOL, Phase.UNKNOWN):
            return
        for key in self._children.of(v):
            child = self._workers.get(self.current_key(key))
            if child is not None and child.vitals is not v:
                last = at if child.vitals.ended_at is None else child.vitals.ended_at
                v.children_at = max(last, v.children_at or last)

    def _join_parents(
        self, worker: WorkerHealth, event: AgentEvent, at: float, now: float
    ) -> list[AgentEvent]:
        """Register a worker with its parents, and check parents that have findings."""
        self._children.join(worker.key, event)
        events: list[AgentEvent] = []
        for key in list(self._children.parents(worker.vitals)):
            parent = self._workers.get(self.current_key(key))
            if parent is not None and parent.findings and parent is not worker:
                events += self._check(parent, at, now)
        return events

    def _schedule(self, worker: WorkerHealth, at: float) -> None:
        """
        Set the deadline if it is sooner than the one in the heap. A later deadline is set when that one is
        due.
        """
        due_at = self._find_next_check(worker, at)
        if due_at is not None and (worker.deadline is None or due_at < worker.deadline):
            worker.deadline = due_at
            heappush(self._heap, (due_at, worker.key))

    def _find_next_check(self, worker: WorkerHealth, at: float) -> float | None:
        v = worker.vitals
        if v.ended_at is not None:
            return None
        grace = find_grace_end(v, self.settings)
        due_at = grace if worker.findings and grace > at else None
        if v.may_be_idle and v.limited_until is None:
            return due_at
        # The check is never later than the shortest limit, so that a change of phase is not missed.
        for moment in (
            *list_change_times(v, self.settings, self._get_process_sign(v)),
            v.last_activity + self._shortest,
        ):
            if moment > at and (due_at is None or moment < due_at):
                due_at = moment
        return due_at

    def _examine(self, worker: WorkerHealth, at: float, now: float, delay: float) -> list[AgentEvent]:
        """
        Run the detectors at ``at``, and return the changes as events of ``now``. The check was due ``delay``
        seconds ago.
        """
        v = worker.vitals
        checked_at = worker.checked_at = _find_check_time(worker, at, now)
        findings = _detect(detect, worker.findings, v, self.settings, at, checked_at)
        state = determine_state(v, findings, self.settings, at)
        before = worker.findings
        worker.findings = tuple(findings)
        if self._has_shadows:
            self._check_shadow(worker, at, checked_at)
        events: list[AgentEvent] = []
        if findings or before:
            events = self._list_changes(v, before, findings, now, delay)
        has_restarted = v.incarnation_count != worker.incarnation_number
        if state is not worker.state and is_allowed_transition(
            worker.state, state, has_restarted=has_restarted
        ):
            worst_finding = find_worst(findings)
            reason = end_reason(v) or "no findings"
            if worst_finding is not None and (v.ended_at is None or state is _FAILING):
                reason = worst_finding.evidence
            elif state is _FAILING and v.failed_runs > self.settings.health_check.consecutive_failures:
                reason = describe_failed_runs(v)
            elif has_too_many_failures(v, self.settings):
                reason = describe_failures(v)
            change = {
                "from": worker.state.value,
                "to": state.value,
                "reason": reason,
                "findings": [finding.to_dict() for finding in findings],
            }
            if v.ended_at is not None:
                change["outcome"] = v.status.value
            events.append(health_event(EventType.HEALTH_STATE_CHANGED, v, now, change))
            if not state.is_in_trouble:
                worker.trouble_since = None
            elif worker.trouble_since is None or worker.incarnation_number != v.incarnation_count:
                worker.trouble_since = now
            worker.state, worker.state_since, worker.reason = state, now, reason
            worker.incarnation_number = v.incarnation_count
        return events

    def _check_shadow(self, worker: WorkerHealth, at: float, checked_at: float) -> None:
        before = {finding.kind: finding.severity.rank for finding in worker.shadow}
        findings = _detect(detect_shadow, worker.shadow, worker.vitals, self.settings, at, checked_at)
        worker.shadow = tuple(findings)
        if self._on_shadow is not None:
            for finding in worker.shadow:
                if finding.severity.rank > before.get(finding.kind, -1):
                    self._on_shadow(worker.key, finding)

    def _list_changes(
        self, v: VitalSigns, before: Sequence[Finding], findings: Sequence[Finding], now: float, delay: float
    ) -> list[AgentEvent]:
        events = []
        old_findings = {finding.kind: finding for finding in before}
        for finding in findings:
            previous = old_findings.pop(finding.kind, None)
            if previous is None and self._on_delay is not None:
                self._on_delay(finding.kind, max(0.0, delay))
            if (
                previous is None
                or finding.severity.rank > previous.severity.rank
                or (finding.ticket and not previous.ticket)
                or (finding.kind is FindingKind.RUNS_FAILED and finding.evidence != previous.evidence)
            ):
                events.append(health_event(EventType.FINDING_OPENED, v, now, finding.to_dict()))
        events.extend(
            health_event(EventType.FINDING_CLEARED, v, now, finding.to_dict())
            for finding in old_findings.values()
        )
        return events


def _find_check_time(worker: WorkerHealth, at: float, now: float) -> float:
    """Return the later of ``at`` and the last check, which is after ``now`` if the clock was set back."""
    return max(at, min(worker.checked_at, now))


def _detect(
    detectors: Callable[[VitalSigns, HealthSettings, float], list[Finding]],
    before: Sequence[Finding],
    v: VitalSigns,
    settings: HealthSettings,
    at: float,
    checked_at: float,
) -> list[Finding]:
    """
    Return the findings as of ``at``, but findings of the kinds in ``before`` as of ``checked_at``.

    An event that arrives late must not undo a change that was due to time alone. It must also not be judged
    as if no event followed it, because its batch may contain more events. So the time after ``at`` makes no
    finding worse than it was before or is as of ``at``. If no event follows, the next check makes it worse.
    """
    findings = detectors(v, settings, at)
    if not before or checked_at == at:
        return findings
    known_findings = {finding.kind: finding for finding in before}
    new_findings = []
    for finding in findings:
        if finding.kind in known_findings:
            known_findings[finding.kind] = max(finding, known_findings[finding.kind], key=_rank_finding)
        else:
            new_findings.append(finding)
    current_findings = [
        finding for finding in detectors(v, settings, checked_at) if finding.kind in known_findings
    ]
    return new_findings + [
        min(finding, known_findings[finding.kind], key=_rank_finding) for finding in current_findings
    ]


def _rank_finding(finding: Finding) -> tuple[bool, int]:
    return finding.ticket, finding.severity.rank


def is_late_work(event: AgentEvent, v: VitalSigns) -> bool:
    """Return whether an event reports work before the end of its session, but arrived after the end."""
    return v.ended_at is not None and event.type in WORK_HANDLERS and event.time <= v.ended_at


END_REASONS: Final = {
    "completed": "the session is completed",
    "failed": "the session has failed",
    "cancelled": "the session was cancelled",
    "terminated": "the worker was terminated",
    "unknown": "no further events; the outcome is unknown",
}


def end_reason(v: VitalSigns) -> str:
    """Return the outcome of a session as text, or an empty string while it is running."""
    if v.refused_input:
        return f"the input was refused: {v.refused_input}"
    return END_REASONS.get(v.status.value, "") if v.ended_at is not None else ""


def health_event(type_: EventType, v: VitalSigns, now: float, data: dict[str, Any]) -> AgentEvent:
    """Return an event of the health layer about a worker."""
    worker_fields = {"agent_id": v.agent_id, "session_id": v.session_id, "incarnation_id": v.incarnation_id}
    return AgentEvent(type=type_, time=now, **worker_fields, **links_of(v), data=data)


def links_of(v: VitalSigns) -> dict[str, str]:
    """Return the event fields that locate a worker's last step: its graph, node, trace and span."""
    return {
        "graph_id": v.graph_id,
        "node_id": v.node_id,
        "trace_id": v.last_trace_id,
        "span_id": v.last_span_id,
    }
