"""
Whose work is it: the agent, its session and its incarnation.

One run is one worker. A run is what one process does in one trace, or in one conversation where spans name
one. Spans are exported when they end, so what is inside an agent arrives before the agent itself, and most
frameworks name the agent and the conversation on some of their spans only: a run has the best name that is
known so far, and is renamed when a better one arrives. From worst to best:

* the service's name, then the name of an agent in the resource;
* what the text of an agent's span names;
* the name on a span; of several, that of the one that began first: it is around the others.

Spans of our own instrumentation name everything themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from queenright.server.telemetry.kind import Kind
from queenright.server.telemetry.messages import CallResult, RequestedCall
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.process import Process

K = TypeVar("K")
V = TypeVar("V")

MAX_TRACES: Final = 10_000
MAX_RUNS: Final = 64
MAX_PARENTS: Final = 1_024
MAX_ENDED: Final = 8
MAX_LOOSE_ENDED: Final = 64
MAX_ROOTS: Final = 10_000
MAX_NAMES: Final = 10_000

Name = tuple[int, int, bool, str]
"""
How good a name is, minus when what it names began, whether that is an agent, and the name: the greatest is
the best.
"""
_OF_SERVICE: Final = 0
_OF_RESOURCE: Final = 1
_OF_TEXT: Final = 2
_OF_WORK: Final = 3


def name_in(observation: Observation) -> Name:
    """Return the name that an observation gives its agent."""
    is_agent = observation.kind is Kind.AGENT
    if observation.agent:
        return _OF_WORK, -observation.start, is_agent, observation.agent
    if is_agent and observation.name:
        return _OF_TEXT, -observation.start, True, observation.name
    process = observation.process
    if process.agent:
        return _OF_RESOURCE, 0, False, process.agent
    return _OF_SERVICE, 0, False, process.service


def name_known(agent: str, process: Process) -> Name:
    """Return the name of a run that was known before the service was started anew: nothing is better."""
    return (_OF_SERVICE if agent == process.service else _OF_WORK), 0, True, agent


@dataclass(slots=True, eq=False)
class EndedCall:
    """A call of a model or a tool, as the first library that told of it said."""

    what: str
    libraries: tuple[str, ...]
    start: int
    end: int
    id: str
    """Its own id, "" where it does not say."""
    mark: Any
    """The hash of its arguments, or an answer's tokens; None where it does not say."""

    def is_same(self, other: EndedCall) -> bool:
        """Say whether another library's call is this one: the same work, most of it at the same time."""
        if self.what != other.what:
            return False
        shared = min(self.end, other.end) - max(self.start, other.start)
        shorter = min(self.end - self.start, other.end - other.start)
        if shared < 0 or 2 * shared < shorter:
            return False
        if self.id and other.id:
            return self.id == other.id
        return self.mark is None or other.mark is None or self.mark == other.mark


@dataclass(slots=True, eq=False)
class OpenWork:
    """Work that has begun, and of which the span has not arrived."""

    what: str
    call_id: str
    library: str
    """What said so."""
    end: int = 0
    """When it ended, if a record has said so."""


@dataclass(slots=True, eq=False)
class Run:
    """One worker's part in one trace."""

    agent_id: str
    session_id: str
    incarnation_id: str
    is_own: bool = False
    """It is of our own instrumentation, which says itself when it begins and what a step is."""
    name: Name = (-1, 0, False, "")
    """Where the agent's name is from."""
    first_name: str = ""
    """The first name that was known."""
    is_loose: bool = False
    """Each of its calls is a trace of its own."""
    has_own_session: bool = True
    """Its session is named; else it is called after its trace."""
    open: bool = False
    ended_at: int = 0
    """When it last ended, in nanoseconds since the epoch."""
    began_at: int = 0
    """When it began to be open, as far as is known; likewise."""
    last_at: int = 0
    """When the last of its work that is known ended."""
    last_llm: str = ""
    turn: str = ""
    turn_until: int = 0
    open_work: dict[bytes, OpenWork] = field(default_factory=dict)
    """By span."""
    ended_calls: deque[EndedCall] | None = None
    """The calls that ended last."""
    failure: dict[str, Any] = field(default_factory=dict)
    """How its last call of a model, or an agent inside it since, failed."""
    has_tools: bool = False
    """It has spans of tools: what messages say of tools is known."""
    requested_calls: dict[str, RequestedCall] | None = None
    """Tool calls in answers of the model, by id."""
    results: dict[str, tuple[CallResult, int, str] | None] | None = None
    """Results in its questions, by id: what, at the latest when, in which turn. None once it was told."""
    outcome_at: int = 0
    """When that call, or agent, ended."""
    own_failure: dict[str, Any] = field(default_factory=dict)
    """How what ended it failed."""
    has_failed: bool = False
    """It was said to have failed when it ended."""

    def name_restorer(self) -> Callable[[], None]:
        """Return what gives it and its session the names again that they have now."""
        names = self.agent_id, self.session_id, self.name, self.has_own_session

        def give() -> None:
            self.agent_id, self.session_id, self.name, self.has_own_session = names

        return give

    def note_outcome(self, failure: dict[str, Any], at: int) -> None:
        """Note how a call of a model, or an agent inside the run, ended; an earlier one changes nothing."""
        if at >= self.outcome_at:
            self.failure, self.outcome_at = failure, at

    def add_open_work(self, span_id: bytes, what: str, call_id: str, library: str) -> None:
        """Note that a piece of work has begun."""
        _bound(self.open_work, MAX_PARENTS)
        self.open_work[span_id] = OpenWork(what, call_id, library)

    def add_requested_call(self, call: RequestedCall) -> None:
        """Note that an answer of the model asks for a tool call; one without an id is not known again."""
        if self.requested_calls is None:
            self.requested_calls = {}
        if call.id and call.id not in self.requested_calls:
            _bound(self.requested_calls, MAX_PARENTS)
            self.requested_calls[call.id] = call

    def add_result(self, result: CallResult, at: int, turn: str) -> None:
        """Note that a question to the model holds the result of a tool call."""
        if self.results is None:
            self.results = {}
        if result.id not in self.results:
            _bound(self.results, MAX_PARENTS)
            self.results[result.id] = result, at, turn

    def restore_result(self, result: CallResult, at: int, turn: str) -> None:
        """Note a result once more that was taken: it could not be told."""
        if self.results is not None:
            self.results[result.id] = result, at, turn

    def pop_answered_calls(self) -> list[tuple[RequestedCall, CallResult, int, str]]:
        """Return the tool calls of which call and result are known, each once."""
        if self.requested_calls is None or self.results is None:
            return []
        found = [
            (self.requested_calls[id_], *known)
            for id_, known in self.results.items()
            if known and id_ in self.requested_calls
        ]
        for call, *_ in found:
            self.results[call.id] = None
        return found

    def is_reported(self, call_id: str) -> bool:
        """Say whether messages have told of a tool call."""
        return self.results is not None and call_id in self.results and self.results[call_id] is None

    def find_open_elsewhere(self, what: str, library: str) -> str | None:
        """Return the id of a call that another library said has begun, and this one has not; None if none."""
        same = [work for work in self.open_work.values() if work.what == what and not work.end]
        here = {work.call_id for work in same if work.library == library}
        return next((work.call_id for work in same if work.call_id not in here), None)

    def is_repeat(self, call: EndedCall) -> bool:
        """Say whether another library has told of a call, and note it."""
        if self.ended_calls is None:
            self.ended_calls = deque(maxlen=MAX_LOOSE_ENDED if self.is_loose else MAX_ENDED)
        [library] = call.libraries
        for known in self.ended_calls:
            if library not in known.libraries and known.is_same(call):
                known.libraries += (library,)
                return True
        self.ended_calls.append(call)
        return False

    def turn_of(self, span_id: str, start: int, end: int) -> str:
        """
        Return the turn that a tool call which has just ended belongs to.

        Calls after the same answer of the model are one turn; without a model, calls that overlap.
        """
        if self.last_llm:
            return self.last_llm
        if not self.turn or start >= self.turn_until:
            self.turn = span_id
        self.turn_until = max(self.turn_until, end)
        return self.turn

    def end_step(self) -> None:
        """Note that a step ended: what comes next is another turn."""
        self.last_llm = self.turn = ""
        self.turn_until = 0


@dataclass(slots=True, eq=False)
class Trace:
    """What is known of one trace of one process."""

    id: str
    runs: dict[str, Run] = field(default_factory=dict)
    """By session."""
    own_runs: dict[tuple[str, str], Run] = field(default_factory=dict)
    """Of our own instrumentation, by agent and session."""
    last_run: Run | None = None
    runs_by_parent: dict[bytes, Run] = field(default_factory=dict)
    work_by_parent: dict[bytes, str] = field(default_factory=dict)
    open_agents: dict[bytes, None] = field(default_factory=dict)
    """Spans of agents that have begun and not ended."""

    def own_run(self, agent: str, session: str, incarnation: str) -> Run:
        """Return the run of a span or record of our own instrumentation, which names everything."""
        run = self.own_runs.get((agent, session))
        if run is None or run.incarnation_id != incarnation:
            run = Run(agent, session, incarnation, is_own=True)
            _bound(self.own_runs, MAX_RUNS)
            self.own_runs[agent, session] = run
        self.last_run = run
        return run

    def find(self, observation: Observation) -> Run | None:
        """Return the run that an observation is of: that of its session, else that of what is around it."""
        near = (
            self.runs_by_parent.get(observation.span_id)
            or self.runs_by_parent.get(observation.parent_id)
            or self.last_run
        )
        if near is None or not observation.session or observation.session == near.session_id or near.is_own:
            return near
        named = self.runs.get(observation.session)
        return near if named is None and not near.has_own_session else named

    def add(self, run: Run) -> None:
        """Add a run of another framework, or one whose session has another name now."""
        _bound(self.runs, MAX_RUNS)
        self.runs[run.session_id] = run

    def note(self, observation: Observation, run: Run) -> None:
        """Note that a span is of a run: what lies beside it or below it is likely to be, too."""
        self.last_run = run
        if observation.parent_id:
            self.note_child(observation.parent_id, run)
        if observation.kind is Kind.AGENT:
            if observation.end:
                self.open_agents.pop(observation.span_id, None)
            else:
                self.note_child(observation.span_id, run)  # what begins below it is its work
                _bound(self.open_agents, MAX_PARENTS)
                self.open_agents[observation.span_id] = None

    def note_child(self, parent: bytes, run: Run) -> None:
        """Note whose work lies below a span."""
        _bound(self.runs_by_parent, MAX_PARENTS)
        self.runs_by_parent[parent] = run

    def is_wrapper(self, span_id: bytes, parent: bytes, what: str) -> bool:
        """
        Say whether a span only wraps one of the same kind that has been counted.

        Two instrumentations on one call (the framework's and the model client's) make two spans of it.
        """
        if parent:
            _bound(self.work_by_parent, MAX_PARENTS)
            self.work_by_parent[parent] = what
        return self.work_by_parent.get(span_id) == what

    def open_runs(self) -> Iterator[Run]:
        """Yield the runs of others than our own instrumentation that have begun and not ended."""
        return (run for run in self.runs.values() if run.open)


class Traces:
    """Traces by process, least recently seen forgotten first. For one thread."""

    def __init__(self, max_traces: int = MAX_TRACES) -> None:
        self._traces: dict[tuple[bytes, str], Trace] = {}
        self._max = max_traces
        self._roots: dict[tuple[bytes, str], tuple[int, dict[str, Any]]] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._known: dict[tuple[str, str], tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self._traces)

    def get(self, trace_id: bytes, process: Process) -> Trace:
        """Return what is known of a trace."""
        key = (trace_id, process.incarnation_id)
        trace = self._traces.pop(key, None)
        if trace is None:
            trace = Trace(trace_id.hex())
            _bound(self._traces, self._max)
        self._traces[key] = trace
        return trace

    def known(self, trace_id: bytes, process: Process) -> Trace | None:
        """Return a trace only if something of it has been seen."""
        return self._traces.get((trace_id, process.incarnation_id))

    def restore_name(self, incarnation_id: str, session: str, names: tuple[str, str]) -> None:
        """Note what a run is called that was known before the service was started anew, and its session."""
        _bound(self._known, MAX_NAMES)
        self._known[incarnation_id, session] = names

    def pop_restored_name(self, incarnation_id: str, session: str) -> tuple[str, str] | None:
        """Return what a run that was known before is called, and its session; once."""
        return self._known.pop((incarnation_id, session), None)

    def note_root(self, observation: Observation, failure: dict[str, Any]) -> None:
        """Note the end of an outermost span that arrived before anything inside it."""
        _bound(self._roots, MAX_ROOTS)
        self._roots[observation.trace_id, observation.process.incarnation_id] = observation.end, failure

    def pop_root(self, observation: Observation) -> tuple[int, dict[str, Any]] | None:
        """Return when and how the outermost span around an observation ended, if that was known before."""
        return self._roots.pop((observation.trace_id, observation.process.incarnation_id), None)

    def note_name(self, incarnation_id: str, old: str, new: str) -> None:
        """Note that a run of a process was renamed: the next that begins under the old name may be alike."""
        _bound(self._names, MAX_NAMES)
        known = self._names.get((incarnation_id, old), new)
        self._names[incarnation_id, old] = new if known == new else ""

    def usual_name(self, incarnation_id: str, name: str) -> str:
        """Return what runs of a process that begin under a name are called in the end, if always the same."""
        return self._names.get((incarnation_id, name)) or name


def _bound(entries: dict[K, V], limit: int) -> None:
    while len(entries) >= limit:
        del entries[next(iter(entries))]
