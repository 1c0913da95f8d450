"""
Whose work is it: the agent, its session and its incarnation, kept stable over a whole trace.

A span is exported when it ends, so the children of an agent arrive before the
agent itself, and most frameworks write the agent's name and conversation on
some of their spans only. The first span of a trace to arrive therefore decides
who the trace belongs to, which is the same however the exporter cut its batches:

* it names its agent: spans that name another agent are another worker's, and
  spans without a name belong to the agent that last spoke under the same parent;
* it names none: the worker is the service (``service.name``), for the rest of the trace.

Spans of our own instrumentation name everything themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from queenright.server.telemetry.process import Process

K = TypeVar("K")
V = TypeVar("V")

MAX_TRACES: Final = 10_000
MAX_RUNS: Final = 64
MAX_PARENTS: Final = 1_024
MAX_ENDED: Final = 8


@dataclass(slots=True, eq=False)
class EndedCall:
    """A call of a model or a tool, as the first library that told of it said."""

    what: str
    libraries: tuple[str, ...]
    start: int
    end: int
    marks: tuple[Any, ...]
    """A call's own id, its arguments, or an answer's tokens; None where it does not say."""

    def is_same(self, other: EndedCall) -> bool:
        """Say whether another library's call is this one: the same work, most of it at the same time."""
        if self.what != other.what:
            return False
        shared = min(self.end, other.end) - max(self.start, other.start)
        shorter = min(self.end - self.start, other.end - other.start)
        if shared < 0 or 2 * shared < shorter:
            return False
        pairs = zip(self.marks, other.marks, strict=True)
        return all(mine is None or theirs is None or mine == theirs for mine, theirs in pairs)


@dataclass(slots=True, eq=False)
class Run:
    """One worker's part in one trace."""

    agent_id: str
    session_id: str
    incarnation_id: str
    own: bool = False
    """It is of our own instrumentation, which says itself when it begins and what a step is."""
    open: bool = False
    ended_at: int = 0
    began_at: int = 0
    """When it began to be open, as far as is known; in nanoseconds since the epoch."""
    """When it last ended, in nanoseconds."""
    last_llm: str = ""
    turn: str = ""
    turn_until: int = 0
    begun: dict[bytes, tuple[str, str, str]] = field(default_factory=dict)
    """Work that has begun and not ended: span id -> what it is, its call id, and the library that said so."""
    ended: deque[EndedCall] | None = None
    """The calls that ended last."""
    failure: dict[str, Any] = field(default_factory=dict)
    """How its last call of a model, or an agent inside it since, failed."""

    def note_begun(self, span_id: bytes, what: str, call_id: str, library: str) -> None:
        """Note that a piece of work has begun."""
        _bound(self.begun, MAX_PARENTS)
        self.begun[span_id] = (what, call_id, library)

    def begun_elsewhere(self, what: str, library: str) -> str | None:
        """Return the id of a call that another library said has begun, and this one has not; None if none."""
        alike = [(id_, by) for kind, id_, by in self.begun.values() if kind == what]
        here = {id_ for id_, by in alike if by == library}
        return next((id_ for id_, _ in alike if id_ not in here), None)

    def is_repeat(self, call: EndedCall) -> bool:
        """Say whether another library has told of a call, and note it."""
        if self.ended is None:
            self.ended = deque(maxlen=MAX_ENDED)
        [library] = call.libraries
        for known in self.ended:
            if library not in known.libraries and known.is_same(call):
                known.libraries += (library,)
                return True
        self.ended.append(call)
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
    nameless: bool = False
    """Its first span named no agent: the worker is the service."""
    first: Run | None = None
    last: Run | None = None
    runs: dict[tuple[str, str], Run] = field(default_factory=dict)
    parents: dict[bytes, Run] = field(default_factory=dict)
    inside: dict[bytes, str] = field(default_factory=dict)

    def own(self, agent: str, session: str, incarnation: str) -> Run:
        """Return the run of a span or record of our own instrumentation, which names everything."""
        key = (agent, session)
        run = self.runs.get(key)
        if run is None or run.incarnation_id != incarnation:
            run = Run(agent, session, incarnation, own=True)
            _bound(self.runs, MAX_RUNS)
            self.runs[key] = run
        if self.first is None:
            self.first = run
        self.last = run
        return run

    def member(self, process: Process, agent: str, session: str, parent: bytes) -> Run:
        """Return the run of a call or a turn; ``agent`` and ``session`` as the span has them, or ""."""
        agent = agent or process.agent
        near = self.parents.get(parent) if parent else None
        if self.first is None:
            self.nameless = not agent
        if self.nameless and self.first is not None:
            run = self._run(process, self.first.agent_id, session, near or self.first)
        else:
            run = self._run(process, agent, session, near or self.last)
        self.first = self.first or run
        self.last = run
        if parent:
            self.note_child(parent, run)
        return run

    def note_child(self, parent: bytes, run: Run) -> None:
        """Note whose work lies below a span."""
        _bound(self.parents, MAX_PARENTS)
        self.parents[parent] = run

    def agent(self, process: Process, agent: str, session: str, span_id: bytes) -> Run:
        """Return the run of an agent's own span: what came from inside it is the same run."""
        run = self.parents.get(span_id)
        if run is None and self.nameless and self.first is not None:
            run = self.first
        if run is not None:
            return run
        # Nothing below it was seen. It says nothing about spans beside it, nor about an agent around it.
        run = self._run(process, agent or process.agent, session, None)
        self.first = self.first or run
        return run

    def _run(self, process: Process, agent: str, session: str, near: Run | None) -> Run:
        """Return the run of an agent; an agent or session that is not named is that of ``near``."""
        if near is None or (agent and near.agent_id != agent):
            agent = agent or process.service
            near = next((run for run in reversed(self.runs.values()) if run.agent_id == agent), None)
        # A session once named after its trace stays so, also when the conversation is named later.
        if near is not None and (not session or near.session_id in (session, self.id)):
            return near
        agent = agent or (near.agent_id if near is not None else process.service)
        session = session or (self.first.session_id if self.first is not None else self.id)
        run = self.runs.get((agent, session))
        if run is None:
            run = Run(agent, session, process.incarnation_id)
            _bound(self.runs, MAX_RUNS)
            self.runs[agent, session] = run
        return run

    def wraps(self, span_id: bytes, parent: bytes, what: str) -> bool:
        """
        Say whether a span only wraps one of the same kind that has been counted.

        Two instrumentations on one call (the framework's and the model client's) make two spans of it.
        """
        if parent:
            _bound(self.inside, MAX_PARENTS)
            self.inside[parent] = what
        return self.inside.get(span_id) == what

    def open_runs(self) -> Iterator[Run]:
        """Yield the runs of others than our own instrumentation that have begun and not ended."""
        return (run for run in self.runs.values() if run.open)


class Traces:
    """Traces by process, least recently seen forgotten first. For one thread."""

    def __init__(self, max_traces: int = MAX_TRACES) -> None:
        self._traces: dict[tuple[bytes, str], Trace] = {}
        self._max = max_traces

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


def _bound(entries: dict[K, V], limit: int) -> None:
    while len(entries) >= limit:
        del entries[next(iter(entries))]
