"""
Runs: the agent, session and incarnation that work belongs to.

A run is the work of one process in one trace, or in one conversation if spans have a conversation id. Spans
are exported when they end, so the work inside an agent arrives before the agent's own span, and most
frameworks name the agent and the conversation only on some spans. A run has the best name known so far and is
renamed when a better one arrives. From worst to best:

* the service's name, then the agent's name in the resource;
* the agent's name in the text of its span;
* the agent's name on a span; of several, the name on the earliest span, because it encloses the others.

Spans of Queenright's instrumentation always have all names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from queenright.server.telemetry.bounded_dict import make_room
from queenright.server.telemetry.kind import ObservationKind
from queenright.server.telemetry.messages import CallResult, RequestedCall
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.process import Process

MAX_TRACES: Final = 10_000
MAX_RUNS: Final = 64
MAX_PARENTS: Final = 1_024
MAX_ENDED: Final = 8
MAX_LOOSE_ENDED: Final = 64
MAX_ROOTS: Final = 10_000
MAX_NAMES: Final = 10_000

RankedName = tuple[int, int, bool, str]
"""
The name's rank, its negated start time, whether it comes from an agent's span, and the name. The greatest is
the best.
"""
_FROM_SERVICE: Final = 0
_FROM_RESOURCE: Final = 1
_FROM_TEXT: Final = 2
_FROM_WORK: Final = 3


def rank_name(observation: Observation) -> RankedName:
    """Return the agent's name in an observation, with its rank."""
    is_agent = observation.kind is ObservationKind.AGENT
    if observation.agent:
        return _FROM_WORK, -observation.start, is_agent, observation.agent
    if is_agent and observation.name:
        return _FROM_TEXT, -observation.start, True, observation.name
    process = observation.process
    if process.agent:
        return _FROM_RESOURCE, 0, False, process.agent
    return _FROM_SERVICE, 0, False, process.service


def rank_restored_name(agent: str, process: Process) -> RankedName:
    """Return the name of a run from before a restart, ranked as the best of its rank."""
    return (_FROM_SERVICE if agent == process.service else _FROM_WORK), 0, True, agent


@dataclass(slots=True, eq=False)
class EndedCall:
    """An ended model or tool call, as reported by the first library."""

    work_key: str
    libraries: tuple[str, ...]
    start: int
    end: int
    id: str
    """The id of the call, or ""."""
    mark: Any
    """The hash of its arguments, or the response's tokens; None if not reported."""

    def is_same(self, other: EndedCall) -> bool:
        """Return whether another library reports this call: the same work at mostly the same time."""
        if self.work_key != other.work_key:
            return False
        overlap = min(self.end, other.end) - max(self.start, other.start)
        shorter = min(self.end - self.start, other.end - other.start)
        if overlap < 0 or 2 * overlap < shorter:
            return False
        if self.id and other.id:
            return self.id == other.id
        return self.mark is None or other.mark is None or self.mark == other.mark


@dataclass(slots=True, eq=False)
class OpenWork:
    """Work that has started and whose span has not arrived."""

    work_key: str
    call_id: str
    library: str
    """The library that reported the start."""
    end: int = 0
    """The end, if a record reported it."""


@dataclass(slots=True, eq=False)
class TracedRun:
    """The work of one agent in one trace or session."""

    agent_id: str
    session_id: str
    incarnation_id: str
    is_own: bool = False
    """Whether the run comes from Queenright's instrumentation, which reports starts and steps itself."""
    name: RankedName = (-1, 0, False, "")
    """The agent's name with its rank."""
    first_name: str = ""
    """The first known name."""
    is_loose: bool = False
    """Whether each of its calls has its own trace."""
    has_own_session: bool = True
    """Whether the run has a session id; otherwise the trace id is used."""
    open: bool = False
    ended_at: int = 0
    """The last end, in nanoseconds since the epoch; 0 if the run has never ended."""
    began_at: int = 0
    """The start, in nanoseconds since the epoch, if known."""
    last_at: int = 0
    """The end of its latest known work."""
    last_llm: str = ""
    turn: str = ""
    turn_until: int = 0
    open_work: dict[bytes, OpenWork] = field(default_factory=dict)
    """Open work, by span id."""
    ended_calls: deque[EndedCall] | None = None
    """The most recent ended calls."""
    failure: dict[str, Any] = field(default_factory=dict)
    """The failure of its last model call, or of a later agent inside it."""
    has_tools: bool = False
    """Whether the run has tool spans. If so, tool calls in messages are not used."""
    requested_calls: dict[str, RequestedCall] | None = None
    """Tool calls in model responses, by id."""
    results: dict[str, tuple[CallResult, int, str] | None] | None = None
    """Tool results in model requests, by id: result, latest time and turn. None once reported."""
    outcome_at: int = 0
    """The end of the call or agent that ``failure`` is about."""
    own_failure: dict[str, Any] = field(default_factory=dict)
    """The failure of the span that ended it."""
    has_failed: bool = False
    """Whether the reported end was a failure."""

    def create_name_restorer(self) -> Callable[[], None]:
        """Return a function that restores the current names of the run and its session."""
        names = self.agent_id, self.session_id, self.name, self.has_own_session

        def restore_names() -> None:
            self.agent_id, self.session_id, self.name, self.has_own_session = names

        return restore_names

    def record_outcome(self, failure: dict[str, Any], at: int) -> None:
        """Record the outcome of a model call or of an agent inside the run. Ignore an older one."""
        if at >= self.outcome_at:
            self.failure, self.outcome_at = failure, at

    def add_open_work(self, span_id: bytes, work_key: str, call_id: str, library: str) -> None:
        """Record the start of work."""
        make_room(self.open_work, MAX_PARENTS)
        self.open_work[span_id] = OpenWork(work_key, call_id, library)

    def add_requested_call(self, call: RequestedCall) -> None:
        """Record a tool call that a model response requests. Ignore a call without an id."""
        if self.requested_calls is None:
            self.requested_calls = {}
        if call.id and call.id not in self.requested_calls:
            make_room(self.requested_calls, MAX_PARENTS)
            self.requested_calls[call.id] = call

    def add_result(self, result: CallResult, at: int, turn: str) -> None:
        """Record a tool result from a model request."""
        if self.results is None:
            self.results = {}
        if result.id not in self.results:
            make_room(self.results, MAX_PARENTS)
            self.results[result.id] = result, at, turn

    def restore_result(self, result: CallResult, at: int, turn: str) -> None:
        """Record a popped result again, because its event was not stored."""
        if self.results is not None:
            self.results[result.id] = result, at, turn

    def pop_answered_calls(self) -> list[tuple[RequestedCall, CallResult, int, str]]:
        """Return the tool calls whose request and result are known. Each is returned once."""
        if self.requested_calls is None or self.results is None:
            return []
        answered_calls = [
            (self.requested_calls[id_], *result)
            for id_, result in self.results.items()
            if result and id_ in self.requested_calls
        ]
        for call, *_ in answered_calls:
            self.results[call.id] = None
        return answered_calls

    def is_reported(self, call_id: str) -> bool:
        """Return whether a tool call was reported from messages."""
        return self.results is not None and call_id in self.results and self.results[call_id] is None

    def find_open_elsewhere(self, work_key: str, library: str) -> str | None:
        """Return the id of an open call that only other libraries have reported, or None."""
        same_work = [work for work in self.open_work.values() if work.work_key == work_key and not work.end]
        own_call_ids = {work.call_id for work in same_work if work.library == library}
        return next((work.call_id for work in same_work if work.call_id not in own_call_ids), None)

    def record_ended_call(self, call: EndedCall) -> bool:
        """Record an ended call. Return whether another library has already reported it."""
        if self.ended_calls is None:
            self.ended_calls = deque(maxlen=MAX_LOOSE_ENDED if self.is_loose else MAX_ENDED)
        [library] = call.libraries
        for ended_call in self.ended_calls:
            if library not in ended_call.libraries and ended_call.is_same(call):
                ended_call.libraries += (library,)
                return True
        self.ended_calls.append(call)
        return False

    def assign_turn(self, span_id: str, start: int, end: int) -> str:
        """
        Return the turn of a tool call that has just ended.

        Calls after the same model response are one turn. Without a model, overlapping calls are one turn.
        """
        if self.last_llm:
            return self.last_llm
        if not self.turn or start >= self.turn_until:
            self.turn = span_id
        self.turn_until = max(self.turn_until, end)
        return self.turn

    def end_step(self) -> None:
        """End the current step. The next work is a new turn."""
        self.last_llm = self.turn = ""
        self.turn_until = 0


@dataclass(slots=True, eq=False)
class Trace:
    """The state of one trace in one process."""

    id: str
    runs: dict[str, TracedRun] = field(default_factory=dict)
    """Runs of other frameworks, by session."""
    own_runs: dict[tuple[str, str], TracedRun] = field(default_factory=dict)
    """Runs of Queenright's instrumentation, by agent and session."""
    last_run: TracedRun | None = None
    runs_by_parent: dict[bytes, TracedRun] = field(default_factory=dict)
    work_by_parent: dict[bytes, str] = field(default_factory=dict)
    open_agents: dict[bytes, None] = field(default_factory=dict)
    """Open agent spans."""

    def get_own_run(self, agent: str, session: str, incarnation: str) -> TracedRun:
        """Return the run of Queenright's instrumentation with these names. Create it if it is new."""
        run = self.own_runs.get((agent, session))
        if run is None or run.incarnation_id != incarnation:
            run = TracedRun(agent, session, incarnation, is_own=True)
            make_room(self.own_runs, MAX_RUNS)
            self.own_runs[agent, session] = run
        self.last_run = run
        return run

    def find(self, observation: Observation) -> TracedRun | None:
        """Return the run of an observation: by its session, or else by the spans around it."""
        nearest_run = (
            self.runs_by_parent.get(observation.span_id)
            or self.runs_by_parent.get(observation.parent_id)
            or self.last_run
        )
        if (
            nearest_run is None
            or not observation.session
            or observation.session == nearest_run.session_id
            or nearest_run.is_own
        ):
            return nearest_run
        named_run = self.runs.get(observation.session)
        return nearest_run if named_run is None and not nearest_run.has_own_session else named_run

    def add(self, run: TracedRun) -> None:
        """Add a run of another framework, or one whose session was renamed."""
        make_room(self.runs, MAX_RUNS)
        self.runs[run.session_id] = run

    def record(self, observation: Observation, run: TracedRun) -> None:
        """Assign a span to a run, as a hint for its siblings and children."""
        self.last_run = run
        if observation.parent_id:
            self.assign_children(observation.parent_id, run)
        if observation.kind is ObservationKind.AGENT:
            if observation.end:
                self.open_agents.pop(observation.span_id, None)
            else:
                # Work that starts below the span belongs to the run.
                self.assign_children(observation.span_id, run)
                make_room(self.open_agents, MAX_PARENTS)
                self.open_agents[observation.span_id] = None

    def assign_children(self, parent: bytes, run: TracedRun) -> None:
        """Assign the children of a span to a run."""
        make_room(self.runs_by_parent, MAX_PARENTS)
        self.runs_by_parent[parent] = run

    def record_nested_work(self, span_id: bytes, parent: bytes, work_key: str) -> bool:
        """
        Record the work of a span. Return whether the span only wraps a counted span of the same kind.

        If two libraries instrument the same call, such as the framework and the model client, there are two
        spans.
        """
        if parent:
            make_room(self.work_by_parent, MAX_PARENTS)
            self.work_by_parent[parent] = work_key
        return self.work_by_parent.get(span_id) == work_key

    def list_open_runs(self) -> Iterator[TracedRun]:
        """Yield the open runs of other frameworks."""
        return (run for run in self.runs.values() if run.open)


class TraceCache:
    """Traces by process. The least recently seen are dropped first. Not thread-safe."""

    def __init__(self, max_traces: int = MAX_TRACES) -> None:
        self._traces: dict[tuple[bytes, str], Trace] = {}
        self._max = max_traces
        self._roots: dict[tuple[bytes, str], tuple[int, dict[str, Any]]] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._names_by_trace: dict[tuple[str, str], tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._traces)

    def get(self, trace_id: bytes, process: Process) -> Trace:
        """Return the state of a trace. Create it if it is new."""
        key = (trace_id, process.incarnation_id)
        trace = self._traces.pop(key, None)
        if trace is None:
            trace = Trace(trace_id.hex())
            make_room(self._traces, self._max)
        self._traces[key] = trace
        return trace

    def find(self, trace_id: bytes, process: Process) -> Trace | None:
        """Return the state of a trace, or None if it is unknown."""
        return self._traces.get((trace_id, process.incarnation_id))

    def restore_name(self, incarnation_id: str, session: str, names: tuple[str, str]) -> None:
        """Restore the agent and session names of a run from before a restart."""
        make_room(self._names_by_trace, MAX_NAMES)
        self._names_by_trace[incarnation_id, session] = names

    def pop_restored_name(self, incarnation_id: str, session: str) -> tuple[str, str] | None:
        """Remove and return the restored names of a run."""
        return self._names_by_trace.pop((incarnation_id, session), None)

    def record_root(self, observation: Observation, failure: dict[str, Any]) -> None:
        """Record the end of an outermost span that arrived before its children."""
        make_room(self._roots, MAX_ROOTS)
        self._roots[observation.trace_id, observation.process.incarnation_id] = observation.end, failure

    def pop_root(self, observation: Observation) -> tuple[int, dict[str, Any]] | None:
        """Remove and return the recorded end and failure of the outermost span around an observation."""
        return self._roots.pop((observation.trace_id, observation.process.incarnation_id), None)

    def record_rename(self, incarnation_id: str, old_name: str, new_name: str) -> None:
        """Record the rename of a run. Later runs with the old name may be renamed in the same way."""
        make_room(self._names, MAX_NAMES)
        previous = self._names.get((incarnation_id, old_name), new_name)
        self._names[incarnation_id, old_name] = new_name if previous == new_name else ""

    def find_usual_name(self, incarnation_id: str, name: str) -> str:
        """Return the final name of earlier runs that started with a name, if it was always the same."""
        return self._names.get((incarnation_id, name)) or name
