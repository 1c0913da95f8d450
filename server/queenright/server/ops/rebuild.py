"""
Rebuild the state of the workers from the event log after a restart, as of when the service last ran.

With a snapshot, only later events are read. Without a snapshot that this version can read, the last day of
the log is read, and earlier events that still matter.

The log is ordered by arrival, but has the times of the senders' clocks. Events are replayed at their arrival
times, as far as these are known from the notes in ``arrivals``, the service's own events and the start time,
so that the clock of one worker does not affect another.
"""

from __future__ import annotations

import functools
import logging
import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    SQLColumnExpression,
    bindparam,
    case,
    func,
    select,
    union_all,
)

from queenright.health.detection.health_state import HealthState
from queenright.health.findings import WorkerKey
from queenright.health.monitoring.logged_health import HEALTH_EVENTS, LoggedHealth
from queenright.health.monitoring.monitor import (
    EVENTS_THAT_ADD_WORKERS,
    FailedRuns,
    HealthMonitor,
    as_terminated,
)
from queenright.health.monitoring.monitor_snapshot import SnapshotHead
from queenright.health.monitoring.snapshot_table import read_snapshot
from queenright.health.settings import HealthSettings
from queenright.health.store.event_log import EVENT_COLUMNS, event_of
from queenright.health.store.tables import EVENTS, TICKETS
from queenright.health.vitals.vital_events import WORK_HANDLERS
from queenright.health.vitals.vital_signs import ABOUT_WORKERS, WORKER_EVENTS
from queenright.runtime.events import TRANSIENT, AgentEvent, EventType
from queenright.server.ops.arrivals import ArrivalMark, Gap, Note

_log = logging.getLogger(__name__)

_PAGE_SIZE: Final = 1000
_SLACK_SECONDS: Final = 2.0
"""Maximum seconds for which the service may run without recording it."""

_SERVICE_EVENTS: Final = tuple(sorted(kind.value for kind in EventType if kind not in WORKER_EVENTS))
_IGNORED_EVENTS: Final = TRANSIENT | {EventType.AGENT_HEARTBEAT, EventType.CIRCUIT_BREAKER_STATE_CHANGED}
"""Types of events that have no lasting effect or do not belong to a session."""

_MIN_STEPS: Final = 25
_MAX_STEPS: Final = 1000
"""Maximum earlier steps to read per session. No detector counts more."""

_EARLIER_EVENTS: Final = {
    **dict.fromkeys((WORKER_EVENTS | ABOUT_WORKERS) - _IGNORED_EVENTS, 1),
    **dict.fromkeys(HEALTH_EVENTS, 10),
    EventType.TOOL_CALL_COMPLETED: 20,
    EventType.LLM_CALL_COMPLETED: 6,
    EventType.OUTPUT_REPORTED: 3,
    EventType.RESOURCE_REPORTED: 16,
    EventType.BREAKER_REPORTED: 64,
    EventType.MCP_SERVER_CHANGED: 64,
    EventType.STEP_COMPLETED: _MIN_STEPS,
}
"""Number of latest events to read for a session that started before the replayed window, by type."""

_MAX_RUNS: Final = 1000
"""Maximum earlier failed runs to count per agent."""

_RUN_EVENTS: Final = (
    EventType.EXECUTION_STARTED,
    EventType.EXECUTION_FAILED,
    EventType.EXECUTION_COMPLETED,
    EventType.AGENT_TERMINATED,
    EventType.TICKET_RESOLVED,
)
"""Types of events that are needed to count failed runs."""

_RUN_ENDS: Final = (EventType.EXECUTION_FAILED, EventType.EXECUTION_COMPLETED)
_WORK_EVENTS: Final = (
    EventType.NODE_LOOP_STARTED.value,
    EventType.NODE_LOOP_COMPLETED.value,
    EventType.EDGE_TRAVERSED.value,
    EventType.GOAL_PROGRESS.value,
    EventType.CHECKPOINT_SAVED.value,
    EventType.OUTPUT_REPORTED.value,
    *sorted(kind.value for kind in WORK_HANDLERS),
)
"""Types of events that begin another run in a session whose last run has ended."""

_EARLIER_RUN_EVENTS: Final = dict.fromkeys(_RUN_EVENTS[:4], 3)
"""Number of earlier events to read for a session whose start is not among the read events, by type."""

_SESSIONS_PER_QUERY: Final = 100
"""Maximum sessions of one agent per query."""

_MAX_DEPTH: Final = 5000
"""Maximum events of one agent and type to scan for a session."""

_MAX_FREQUENT_DEPTH: Final = 1000
_FREQUENT_EVENTS: Final = frozenset(
    {
        EventType.EDGE_TRAVERSED,
        EventType.LLM_CALL_COMPLETED,
        EventType.LLM_CALL_STARTED,
        EventType.STEP_COMPLETED,
        EventType.STEP_STARTED,
        EventType.TOOL_CALL_COMPLETED,
        EventType.TOOL_CALL_STARTED,
    }
)


@dataclass(slots=True)
class RebuildResult:
    """The result of a rebuild."""

    events: int = 0
    alive_until: float | None = None
    """The last time at which the service ran, according to the log and the notes."""
    last_id: str = ""
    """The last event in the log."""
    snapshot_at: float | None = None
    """When the snapshot was taken, in seconds since the epoch; None without one."""
    logged_health: dict[WorkerKey, LoggedHealth] = field(default_factory=dict)
    unlogged: dict[str, AgentEvent] = field(default_factory=dict)
    """Findings and states in the snapshot that are not in the log, by id."""


class ArrivalBounds:
    """
    Upper bounds of the arrival time of each row. A row never arrives after a later row.

    Args:
        moments: Rows with known arrival times, ascending between two ``gaps``.
        gaps: Rows, each with the gap that follows it.
        end: The latest possible time.
        begin: The earliest possible time.
    """

    def __init__(
        self,
        moments: Iterable[tuple[int, float]],
        gaps: Iterable[tuple[int, Gap]],
        end: float,
        begin: float = 0.0,
    ) -> None:
        moments = list(moments)
        self._known_seqs = {seq for seq, _ in moments}
        self._gaps = deque(sorted(gaps, key=lambda entry: entry[0]))
        times = sorted([*moments, *((seq, gap.start) for seq, gap in self._gaps)])
        self._moments = deque(_lower_to_later(times, [(seq, gap.start) for seq, gap in self._gaps], end))
        self._end = end
        self.now = begin
        """The time of the last processed row."""
        self.earliest = begin
        """A lower bound of the next row's time."""

    def take_gaps_before(self, seq: int) -> Iterator[Gap]:
        """Yield the gaps directly before a row."""
        while self._gaps and self._gaps[0][0] < seq:
            gap_seq, gap = self._gaps.popleft()
            self._advance_to(gap_seq)
            yield gap
            self.now = self.earliest = gap.end

    def find_arrival_time(self, seq: int, time: float) -> float:
        """Return the time at which to replay an event whose sender's time is ``time``."""
        self._advance_to(seq - 1)
        latest = self._moments[0][1] if self._moments else self._end
        if seq in self._known_seqs:
            self.earliest = time = latest
        self.now = max(self.now, self.earliest, min(time, latest))
        return self.now

    def _advance_to(self, seq: int) -> None:
        """Drop the known times up to row ``seq``."""
        while self._moments and self._moments[0][0] <= seq:
            _, self.earliest = self._moments.popleft()


def _lower_to_later(
    moments: Sequence[tuple[int, float]], gaps: Sequence[tuple[int, float]], end: float
) -> list[tuple[int, float]]:
    """Lower each time to those of later rows up to the next gap, because no row arrives after a later one."""
    bounded_times, remaining = list[tuple[int, float]](), list(gaps)
    for seq, time in reversed(moments):
        while remaining and seq <= remaining[-1][0]:
            end = remaining.pop()[1]
        end = min(end, time)
        bounded_times.append((seq, end))
    return bounded_times[::-1]


def rebuild_workers(
    conn: Connection,
    monitor: HealthMonitor,
    *,
    since: float,
    now: float,
    notes: Sequence[Note] = (),
    alive_until: float | None = None,
) -> RebuildResult:
    """
    Rebuild the workers in a new monitor, as they were when the service last ran.

    Args:
        conn: A connection with a consistent view of the log.
        monitor: A new monitor. Without a snapshot, it receives every event since ``since``, and earlier
            events of sessions that started before.
        since: The time from which the log is replayed, if there is no snapshot.
        now: The current time.
        notes: Known arrival times.
        alive_until: The last time at which the service is known to have run.
    """
    result = RebuildResult(last_id=conn.execute(_LAST_ID).scalar() or "")
    snapshot = read_snapshot(conn, monitor)
    begin, in_window = 0.0, [EVENTS.c.time >= since, EVENTS.c.time <= now]
    first_seq: int | None
    if snapshot is None:
        first_seq = conn.execute(select(func.min(EVENTS.c.seq)).where(*in_window)).scalar()
    else:
        begin, since, first_seq = snapshot.time, -math.inf, snapshot.seq + 1
        result.snapshot_at = begin
        in_window = [EVENTS.c.seq >= first_seq]
        notes = [note for note in notes if note.time > begin]
        alive_until = max(alive_until or 0.0, begin)
    moments = [
        (row.seq, min(row.time, now))
        for row in conn.execute(
            select(EVENTS.c.seq, EVENTS.c.time).where(*in_window, EVENTS.c.type.in_(_SERVICE_EVENTS))
        )
    ]
    if alive_until is not None:
        alive_until = min(now, max(alive_until, max((time for _, time in moments), default=0.0)))
    end = now if alive_until is None else min(now, alive_until + _SLACK_SECONDS)
    known_times, gaps = _locate_notes(conn, notes)
    timeline = ArrivalBounds([*moments, *known_times], gaps, end, begin)
    if first_seq is None:
        first_seq = (conn.execute(select(func.max(EVENTS.c.seq))).scalar() or 0) + 1
    unobserved_seqs = () if snapshot is None else snapshot.unobserved
    stopped_seqs, terminated_runs = _read_terminated(
        conn, 0 if snapshot is None else min((first_seq, *unobserved_seqs))
    )
    if snapshot is None:
        _restore_earlier(conn, monitor, result, first_seq=first_seq, since=since, stopped_seqs=stopped_seqs)
    else:
        monitor.restart_processes(now)
        _restore_logged_health(monitor, result, snapshot)
    unobserved_events = sorted(_read_events(conn, unobserved_seqs).items())
    for seq, event in chain(unobserved_events, _iter_events(conn, first_seq)):
        for gap in timeline.take_gaps_before(seq):
            _apply_gap(monitor, gap)
        at = timeline.find_arrival_time(seq, event.time)
        if max(event.time, timeline.earliest) >= since:
            _apply(monitor, result, as_terminated(event) if seq in stopped_seqs else event, at)
            result.events += 1
    monitor.restore_terminated_runs(terminated_runs)
    for gap in timeline.take_gaps_before(2**62):
        _apply_gap(monitor, gap)
    result.alive_until = (
        min(now, max(alive_until or 0.0, timeline.now)) or conn.execute(_NEWEST_TIME, {"now": now}).scalar()
    )
    if result.alive_until is not None:
        monitor.sweep(result.alive_until)  # detects a known silence again
        monitor.advance(result.alive_until)
    for worker in monitor.workers():
        logged_health = result.logged_health.get(worker.key)
        if (
            logged_health is not None
            and logged_health.since is not None
            and logged_health.state is worker.state
        ):
            worker.state_since = logged_health.since
    return result


def _restore_earlier(
    conn: Connection,
    monitor: HealthMonitor,
    result: RebuildResult,
    *,
    first_seq: int,
    since: float,
    stopped_seqs: Collection[int],
) -> None:
    """Restore the effects of events before row ``first_seq`` that still matter."""
    monitor.restore_failed_runs(_count_failed_runs(conn, first_seq, monitor.settings, stopped_seqs))
    for agent, sessions in _list_sessions_begun_before(conn, first_seq).items():
        for start in range(0, len(sessions), _SESSIONS_PER_QUERY):
            for _, events in _read_events_before(
                conn, agent, sessions[start : start + _SESSIONS_PER_QUERY], first_seq
            ):
                at = 0.0
                for event in events:
                    at = max(at, min(event.time, since))
                    _apply(monitor, result, event, at, counts_runs=False)


def _restore_logged_health(monitor: HealthMonitor, result: RebuildResult, snapshot: SnapshotHead) -> None:
    """Set the logged health of the restored workers, as if the unlogged events were in the log."""
    result.unlogged = {event.id: event for event in snapshot.unlogged}
    for worker in monitor.workers():
        if worker.findings or worker.state is not HealthState.HEALTHY:
            result.logged_health[worker.key] = LoggedHealth(
                state=worker.state,
                findings={finding.kind.value: finding.to_dict() for finding in worker.findings},
                since=worker.state_since,
            )


def _apply(
    monitor: HealthMonitor, result: RebuildResult, event: AgentEvent, at: float, *, counts_runs: bool = True
) -> None:
    if event.type in HEALTH_EVENTS and result.unlogged.pop(event.id, None) is None:
        result.logged_health.setdefault((event.agent_id, event.session_id), LoggedHealth()).apply(event)
    try:
        monitor.replay(event, at, counts_runs=counts_runs)
    except Exception:
        _log.exception("cannot replay an event of %r from the log: %s", event.agent_id, event.type)


def _apply_gap(monitor: HealthMonitor, gap: Gap) -> None:
    if gap.kind == "away":
        monitor.exclude_outage(gap.start, gap.end)
    else:
        monitor.sweep(gap.start)
        monitor.handle_clock_jump(gap.end)


# -- reading ----------------------------------------------------------------------------------------

_NEWEST_TIME: Final = select(func.max(EVENTS.c.time)).where(EVENTS.c.time <= bindparam("now"))
_MAX_MODEL_CALLS: Final = 20_000
_LAST_ID: Final = select(EVENTS.c.id).order_by(EVENTS.c.seq.desc()).limit(1)


def _iter_events(conn: Connection, first_seq: int) -> Iterator[tuple[int, AgentEvent]]:
    after = first_seq - 1
    while rows := conn.execute(
        select(*EVENT_COLUMNS).where(EVENTS.c.seq > after).order_by(EVENTS.c.seq).limit(_PAGE_SIZE)
    ).all():
        after = rows[-1].seq
        yield from _parse_rows(rows)


def read_model_calls(conn: Connection, since: float) -> list[AgentEvent]:
    """Return the model calls that ended since a time, in seconds since the epoch, oldest first."""
    query = (
        select(*EVENT_COLUMNS)
        .where(EVENTS.c.type == EventType.LLM_CALL_COMPLETED.value, EVENTS.c.time >= since)
        .order_by(EVENTS.c.seq.desc())
        .limit(_MAX_MODEL_CALLS)
    )
    return [event for _, event in _parse_rows(reversed(conn.execute(query).all()))]


def _parse_rows(rows: Iterable[Row[Any]]) -> Iterator[tuple[int, AgentEvent]]:
    for row in rows:
        event = event_of(row)
        if event is not None:
            yield row[0], event


def _locate_notes(
    conn: Connection, notes: Sequence[Note]
) -> tuple[list[tuple[int, float]], list[tuple[int, Gap]]]:
    """Map notes to rows. Drop notes without a row or out of order."""
    ids = [note.event_id for note in notes if isinstance(note, ArrivalMark)]
    rows: dict[str, int] = {}
    for start in range(0, len(ids), _PAGE_SIZE):
        query = select(EVENTS.c.id, EVENTS.c.seq).where(EVENTS.c.id.in_(ids[start : start + _PAGE_SIZE]))
        rows.update((row.id, row.seq) for row in conn.execute(query))
    moments, gaps, last_seq = list[tuple[int, float]](), list[tuple[int, Gap]](), 0
    for note in notes:
        if isinstance(note, Gap):
            gaps.append((last_seq, note))
        elif (seq := rows.get(note.event_id, 0)) > last_seq:
            moments.append((seq, note.time))
            last_seq = seq
    return moments, gaps


def _list_sessions_begun_before(conn: Connection, first_seq: int) -> dict[str, list[str]]:
    """Return the sessions that started before row ``first_seq``, by agent."""
    event_type: SQLColumnExpression[str] = EVENTS.c.type
    first_start = func.min(_select_seq_if(event_type == EventType.EXECUTION_STARTED.value))
    first_work = func.min(_select_seq_if(event_type != EventType.AGENT_HEARTBEAT.value))
    query = (
        select(EVENTS.c.agent_id, EVENTS.c.session_id, first_start, first_work)
        # The concatenation makes the planner read by sequence number.
        .where(
            EVENTS.c.seq >= first_seq,
            (event_type + "").in_([type_.value for type_ in WORKER_EVENTS | EVENTS_THAT_ADD_WORKERS]),
        )
        .group_by(EVENTS.c.agent_id, EVENTS.c.session_id)
    )
    has_start = {(row[0], row[1]): row[2] is not None and row[2] == row[3] for row in conn.execute(query)}
    open_tickets = select(TICKETS.c.agent_id, TICKETS.c.session_id).where(TICKETS.c.closed_at.is_(None))
    has_start |= {
        key: False for row in conn.execute(open_tickets) if (key := (row[0], row[1])) not in has_start
    }
    partial_sessions: dict[str, list[str]] = {}
    for (agent, session), is_whole in has_start.items():
        if not is_whole:
            partial_sessions.setdefault(agent, []).append(session)
    return partial_sessions


def _select_seq_if(condition: ColumnElement[bool]) -> ColumnElement[Any]:
    return case((condition, EVENTS.c.seq))


def _read_events_before(
    conn: Connection, agent: str, sessions: Sequence[str], first_seq: int
) -> Iterator[tuple[str, list[AgentEvent]]]:
    """Yield each session of an agent with its events before row ``first_seq`` that still matter, in order."""
    seqs = _find_last_of_each(conn, agent, sessions, first_seq, _EARLIER_EVENTS)
    events = _read_events(conn, [seq for session_seqs in seqs.values() for seq in session_seqs])
    longer_sessions = [
        session
        for session, session_seqs in seqs.items()
        if _needs_more_steps([events.get(seq) for seq in session_seqs])
    ]
    if longer_sessions:
        steps = {EventType.STEP_COMPLETED: _MAX_STEPS}
        for session, session_seqs in _find_last_of_each(
            conn, agent, longer_sessions, first_seq, steps
        ).items():
            more_events = _read_events(conn, [seq for seq in session_seqs if seq not in events])
            events |= more_events
            seqs[session] = [*seqs[session], *more_events]
    for session, session_seqs in seqs.items():
        yield session, [events[seq] for seq in sorted(session_seqs) if seq in events]


def _needs_more_steps(events: Sequence[AgentEvent | None]) -> bool:
    """Return whether the current series of bad steps may have started before the read events."""
    steps = [event for event in events if event is not None and event.type is EventType.STEP_COMPLETED]
    return len(steps) == _MIN_STEPS and not any(step.data.get("verdict") == "ACCEPT" for step in steps)


def _read_terminated(conn: Connection, first_seq: int) -> tuple[set[int], list[tuple[str, str, str]]]:
    """
    Return the rows in which terminated runs reported their end, before or after the termination, and the keys
    of these runs (agent, session, incarnation). Rows before ``first_seq`` are not read.

    The running monitor treats these rows as the end of the terminated run.
    """
    terminated = EventType.AGENT_TERMINATED.value
    ends = {EventType.EXECUTION_COMPLETED.value, EventType.EXECUTION_FAILED.value}
    run_types = [terminated, EventType.EXECUTION_STARTED.value, *ends]
    columns = (EVENTS.c.seq, EVENTS.c.type, EVENTS.c.session_id, EVENTS.c.incarnation_id)
    agents = (
        select(EVENTS.c.agent_id).where(EVENTS.c.type == terminated, EVENTS.c.seq >= first_seq).distinct()
    )
    rows, runs = set[int](), list[tuple[str, str, str]]()
    for (agent,) in conn.execute(agents).all():
        ends_by_run: dict[tuple[str, str], set[int]] = {}
        stopped_keys = set[tuple[str, str]]()
        query = select(*columns).where(
            EVENTS.c.agent_id == agent, EVENTS.c.type.in_(run_types), EVENTS.c.seq >= first_seq
        )
        for seq, kind, *run in conn.execute(query.order_by(EVENTS.c.seq)):
            key = (run[0], run[1])
            if kind in ends:
                ends_by_run.setdefault(key, set()).add(seq)
            elif kind == terminated:
                stopped_keys.add(key)
            if key in stopped_keys:
                rows |= ends_by_run.pop(key, set())
            if kind == EventType.EXECUTION_STARTED.value:
                stopped_keys.discard(key)
                ends_by_run.pop(key, None)
        runs += [(agent, *key) for key in stopped_keys]
    return rows, runs


def _count_failed_runs(
    conn: Connection, first_seq: int, settings: HealthSettings, stopped_seqs: Collection[int]
) -> dict[str, FailedRuns]:
    """Return the number of consecutive failed runs before row ``first_seq``, by agent."""
    failed_agents = (
        select(EVENTS.c.agent_id)
        .where(EVENTS.c.type == EventType.EXECUTION_FAILED.value, EVENTS.c.seq < first_seq)
        .distinct()
    )
    runs_by_agent = {}
    for (agent,) in conn.execute(failed_agents).all():
        # A second monitor counts them, as in live operation.
        monitor, at = HealthMonitor(settings), 0.0
        for seq, event in _read_since_completed(conn, agent, first_seq, stopped_seqs).items():
            at = max(at, event.time)
            monitor.replay(as_terminated(event) if seq in stopped_seqs else event, at)
        runs = monitor.failed_runs(agent)
        if agent and runs.count:
            runs_by_agent[agent] = runs
    return runs_by_agent


def _read_since_completed(
    conn: Connection, agent: str, first_seq: int, stopped_seqs: Collection[int]
) -> dict[int, AgentEvent]:
    """
    Return the starts and ends of an agent's runs since its last completed run, and the resolutions of its
    tickets.

    To detect repeated ends, this includes earlier starts and ends of the sessions, and work between two equal
    ends.
    """
    conditions = (EVENTS.c.agent_id == agent, EVENTS.c.seq < first_seq)
    completed_seq = _find_last_completed(conn, agent, first_seq, stopped_seqs)
    seqs: list[int] = []
    for kind in _RUN_EVENTS:
        query = (
            select(EVENTS.c.seq)
            .where(*conditions, EVENTS.c.type == kind.value, EVENTS.c.seq >= completed_seq)
            .order_by(EVENTS.c.seq.desc())
            .limit(_MAX_RUNS)
        )
        seqs += conn.execute(query).scalars()
    events = dict(sorted(_read_events(conn, seqs).items()))
    started_sessions, earlier_sessions = set[str](), dict[str, None]()
    for event in events.values():
        if event.type is EventType.EXECUTION_STARTED:
            started_sessions.add(event.session_id)
        elif event.type is not EventType.TICKET_RESOLVED and event.session_id not in started_sessions:
            earlier_sessions[event.session_id] = None
    sessions, oldest = list(earlier_sessions), min(events, default=first_seq)
    for start in range(0, len(sessions), _SESSIONS_PER_QUERY):
        batch = sessions[start : start + _SESSIONS_PER_QUERY]
        for event_seqs in _find_last_of_each(conn, agent, batch, oldest, _EARLIER_RUN_EVENTS).values():
            events |= _read_events(conn, event_seqs)
    return dict(sorted((events | _read_work_between_equal_ends(conn, agent, events)).items()))


def _find_last_completed(conn: Connection, agent: str, first_seq: int, stopped_seqs: Collection[int]) -> int:
    """Return the row of an agent's last completed run, ignoring repeated ends; 0 if there is none."""
    completed_runs = (
        select(EVENTS.c.seq, EVENTS.c.session_id)
        .where(
            EVENTS.c.agent_id == agent,
            EVENTS.c.seq < first_seq,
            EVENTS.c.type == EventType.EXECUTION_COMPLETED.value,
        )
        .order_by(EVENTS.c.seq.desc())
        .limit(_MAX_RUNS)
    )
    for seq, session in conn.execute(completed_runs).all():
        if seq in stopped_seqs:
            continue
        start, end = EventType.EXECUTION_STARTED, EventType.EXECUTION_COMPLETED
        start_seq = max(_find_last_of_each(conn, agent, [session], seq, {start: 1})[session], default=0)
        # Without a start, the search must be bounded. With one, it is short.
        if start_seq:
            ended_seq = _find_last_between(conn, agent, session, [end.value], start_seq, seq) or 0
        else:
            ended_seq = max(_find_last_of_each(conn, agent, [session], seq, {end: 1})[session], default=0)
        if (
            start_seq >= ended_seq
            or _find_last_between(conn, agent, session, _WORK_EVENTS, ended_seq, seq) is not None
        ):
            return int(seq)
    return 0


def _read_work_between_equal_ends(
    conn: Connection, agent: str, events: Mapping[int, AgentEvent]
) -> dict[int, AgentEvent]:
    """Return the work between two equal ends of a session without a start in between."""
    last_ends: dict[str, tuple[int, EventType]] = {}
    work_seqs: list[int] = []
    for seq, event in sorted(events.items()):
        if event.type is EventType.TICKET_RESOLVED:
            continue
        previous_seq, kind = last_ends.get(event.session_id, (0, None))
        if kind is event.type and kind in _RUN_ENDS:
            last_seq = _find_last_between(conn, agent, event.session_id, _WORK_EVENTS, previous_seq, seq)
            work_seqs += [] if last_seq is None else [last_seq]
        last_ends[event.session_id] = (seq, event.type)
    return _read_events(conn, work_seqs)


def _find_last_between(
    conn: Connection, agent: str, session: str, kinds: Sequence[str], after: int, before: int
) -> int | None:
    """Return the last row of a session that has one of these types and is between two rows."""
    query = select(func.max(EVENTS.c.seq)).where(
        EVENTS.c.agent_id == agent,
        EVENTS.c.type.in_(kinds),
        EVENTS.c.seq > after,
        EVENTS.c.seq < before,
        EVENTS.c.session_id == session,
    )
    return conn.execute(query).scalar()


def _find_last_of_each(
    conn: Connection,
    agent: str,
    sessions: Sequence[str],
    first_seq: int,
    wanted_counts: Mapping[EventType, int],
) -> dict[str, list[int]]:
    """Return the sequence numbers of each session's latest events, up to ``wanted_counts`` per type."""
    rows = conn.execute(
        _build_last_rows_query(tuple(wanted_counts.items()), len(sessions)),
        {"agent_id": agent, "sessions": list(sessions), "first": first_seq},
    )
    remaining_counts = {
        (session, kind.value): max_count for session in sessions for kind, max_count in wanted_counts.items()
    }
    rows_by_session: dict[str, list[int]] = {session: [] for session in sessions}
    for row in rows:
        if remaining_counts[row.session_id, row.type] > 0:
            remaining_counts[row.session_id, row.type] -= 1
            rows_by_session[row.session_id].append(row.seq)
    return rows_by_session


@functools.lru_cache(maxsize=2 * _SESSIONS_PER_QUERY)
def _build_last_rows_query(wanted_counts: tuple[tuple[EventType, int], ...], sessions: int) -> Any:
    """Build a query with one subquery per type, because the index on agent and type is in log order."""
    subqueries = []
    for kind, max_count in wanted_counts:
        depth = (_MAX_FREQUENT_DEPTH if kind in _FREQUENT_EVENTS else _MAX_DEPTH) + 200 * sessions + max_count
        agent_rows = (
            select(EVENTS.c.seq, EVENTS.c.type, EVENTS.c.session_id)
            .where(EVENTS.c.agent_id == bindparam("agent_id"), EVENTS.c.type == kind.value)
            .where(EVENTS.c.seq < bindparam("first"))
            .order_by(EVENTS.c.seq.desc())
            .limit(depth)
            .subquery()
        )
        session_rows = (
            select(agent_rows)
            .where(agent_rows.c.session_id.in_(bindparam("sessions", expanding=True)))
            .order_by(agent_rows.c.seq.desc())
            .limit(max_count if sessions == 1 else 4 * max_count * sessions)
        )
        subqueries.append(select(session_rows.subquery()))
    return union_all(*subqueries)


def _read_events(conn: Connection, seqs: Sequence[int]) -> dict[int, AgentEvent]:
    events: dict[int, AgentEvent] = {}
    for start in range(0, len(seqs), _PAGE_SIZE):
        query = select(*EVENT_COLUMNS).where(EVENTS.c.seq.in_(seqs[start : start + _PAGE_SIZE]))
        events.update(_parse_rows(conn.execute(query)))
    return events
