"""
The assembler: observations of any source become events of the agent that they are about.

It knows who an observation belongs to, when a run begins and ends, and that one piece of work counts once,
however many records say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.names import WaitingReason
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.telemetry.batch import Batch
from queenright.server.telemetry.duplicates import Duplicates
from queenright.server.telemetry.kind import Kind
from queenright.server.telemetry.lost_spans import LostSpans
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.runs import MAX_TRACES, EndedCall, Run, Traces
from queenright.server.telemetry.sessions import Sessions
from queenright.server.telemetry.unusable import Unused
from queenright.server.telemetry.values import seconds_of

_STARTED: Final = {
    Kind.AGENT: EventType.EXECUTION_STARTED,
    Kind.STEP: EventType.STEP_STARTED,
    Kind.LLM: EventType.LLM_CALL_STARTED,
    Kind.TOOL: EventType.TOOL_CALL_STARTED,
    Kind.TEXT: EventType.LLM_TEXT_DELTA,
    Kind.HEARTBEAT: EventType.AGENT_HEARTBEAT,
    Kind.WAIT: EventType.WORKER_WAITING,
    Kind.CHECKPOINT: EventType.CHECKPOINT_SAVED,
    Kind.OUTPUT: EventType.OUTPUT_REPORTED,
}
"""What began, or happened at one moment."""


_LOOKED_AT: Final = 64
_OF_A_KIND: Final = 2
"""
Of the first observations of a request so many of each process and kind are looked at for what their sender
shows of its agents: it costs as much as a tenth of decoding one.
"""
_OF_STEP: Final = ("error_type", "error", "duration")
"""What of a model call is said of the step that it is, too."""


class Assembler:
    """
    What is remembered between requests, all of it bounded. For one thread.

    Args:
        max_traces: Those seen last are remembered.
    """

    def __init__(self, max_traces: int = MAX_TRACES) -> None:
        self.traces = Traces(max_traces)
        self.sessions = Sessions()
        self.duplicates = Duplicates()
        self.lost = LostSpans()

    def assemble(self, observations: list[Observation], batch: Batch, now: float) -> Iterator[None]:
        """
        Add to ``batch`` the events that observations stand for, pausing after each.

        Raises:
            StillStoring: one of the records is being stored by another request.
        """
        # By time, whatever scope they come from, and what lies inside another before it: a root must not
        # end a run before the records of what was done in it are there.
        observations += self.lost.due(now, self.duplicates, batch)
        observations.sort(key=_order)
        assembly = _Assembly(self, observations, batch, now)
        left = _LOOKED_AT
        looked_at: dict[tuple[int, int], int] = {}
        for observation in observations:
            run = assembly.add(observation)
            if left:
                left -= 1
                key = id(observation.process), id(observation.kind)
                count = looked_at.get(key, 0)
                if count < _OF_A_KIND and run is not None:
                    looked_at[key] = count + 1
                    batch.sources.of(observation.process, observation.library).note(run, observation)
            yield


def _order(observation: Observation) -> tuple[int, int]:
    return observation.end or observation.start, -observation.start


class _Assembly:
    """Takes in the observations of one batch."""

    __slots__ = (
        "_batch",
        "_by_span",
        "_duplicates",
        "_lost",
        "_now",
        "_observations",
        "_own_runs",
        "_sessions",
        "_traces",
    )

    def __init__(
        self, assembler: Assembler, observations: Sequence[Observation], batch: Batch, now: float
    ) -> None:
        self._traces = assembler.traces
        self._sessions = assembler.sessions
        self._duplicates = assembler.duplicates
        self._observations = observations
        self._batch = batch
        self._now = now
        self._by_span: dict[bytes, Observation] | None = None
        self._own_runs: dict[tuple[bytes, str, str, str], Run] = {}
        self._lost = assembler.lost

    def add(self, one: Observation) -> Run | None:
        """Take in one observation; return the run that it is of, None if it is not used."""
        batch = self._batch
        if one.kind is None:
            batch.ignore(one.process, one.library, Unused.NO_AGENT_WORK)
            self._end_of_trace(one)
            return None
        if one.interval is not None:
            batch.signs[one.process.incarnation_id] = one.interval
        if self._is_known(one):
            batch.ignore(one.process, one.library, Unused.REPEATED)
            return None
        if one.awaits_span:
            self._lost.hold(one, self._now)
            batch.ignored += 1
            return None
        if one.client:
            batch.identities.add(one.identity)
            batch.accepted += 1
            session = self._sessions.get(one.client, one.agent, one.session)
            # What it has noted would keep the same records from counting when they come again.
            batch.on_undo(partial(self._sessions.forget, one.client, one.session))
            for event in session.take(one):
                self._emit(event.type, session.run, one, event.data, at=event.at)
            return session.run
        run = self._own_run(one) if one.is_own and one.agent and one.session else self._foreign_run(one)
        if not run.own:
            if not self._counts(run, one):
                batch.ignore(one.process, one.library, Unused.SAME_WORK)
                return None
            self._begin(run, one)
        batch.identities.add(one.identity)
        batch.accepted += 1
        if one.end:
            _ENDED[one.kind](self, run, one)
        elif run.own or one.kind is not Kind.AGENT:
            self._emit(_STARTED[one.kind], run, one, one.data, at=one.start)
        if not run.own:
            self._end_of_trace(one)
        return run

    def _is_known(self, one: Observation) -> bool:
        """Say whether a record came before, or says that something begins that is known to be over."""
        known, seen = self._batch.identities, self._duplicates.seen
        if one.identity in known or seen(one.identity):
            return True
        if one.end or one.is_own or one.client or not one.span_id:
            return False
        ended = one.trace_id + one.span_id
        return ended in known or seen(ended)

    # -- who ------------------------------------------------------------------------------------

    def _foreign_run(self, one: Observation) -> Run:
        trace = self._traces.get(one.trace_id, one.process)
        agent, session, parent = one.agent, one.session, one.parent_id
        if one.kind is Kind.AGENT:
            run = trace.agent(one.process, agent or one.name, session, one.span_id)
            if not one.end:
                trace.note_child(one.span_id, run)  # what begins below it is its work
                trace.last = trace.last or run  # so is work of which the parents were not seen
            return run
        if not agent and trace.first is None and parent:
            agent, session = self._around(parent, session)
        return trace.member(one.process, agent, session, parent)

    def _around(self, parent: bytes, session: str) -> tuple[str, str]:
        """
        Return the agent and session of the call around a nameless first span.

        A model client's own span ends a moment before the framework's span of the same call,
        and is in the same batch.
        """
        if self._by_span is None:
            self._by_span = {one.span_id: one for one in self._observations}
        outer = self._by_span.get(parent)
        if outer is None or outer.kind is None or outer.kind is Kind.AGENT:
            return "", session
        return outer.agent, session or outer.session

    def _own_run(self, one: Observation) -> Run:
        incarnation = one.incarnation or one.process.incarnation_id
        key = (one.trace_id, one.agent, one.session, incarnation)
        run = self._own_runs.get(key)
        if run is None:
            if one.trace_id:
                # Spans without a name in this trace (a model client's, say) are this agent's.
                trace = self._traces.get(one.trace_id, one.process)
                run = trace.own(one.agent, one.session, incarnation)
            else:
                run = Run(one.agent, one.session, incarnation, own=True)
            self._own_runs[key] = run
        return run

    def _counts(self, run: Run, one: Observation) -> bool:
        """
        Say whether a piece of work of another framework is none that has been counted, and note its id.

        Two instrumentations on one call (the framework's and the model client's) make two spans of it, one
        around the other or both beside each other. The first of them to begin and the first to end count.
        """
        if not one.end and not run.open and run.ended_at and one.start <= run.ended_at:
            return False
        if one.kind is Kind.AGENT:
            return True
        what = f"{one.kind} {one.data['tool']}" if one.kind is Kind.TOOL else str(one.kind)
        around = run.begun.get(one.parent_id)
        is_inside = around is not None and around[0] == what
        if not one.end:
            if is_inside:
                return False
            elsewhere = run.begun_elsewhere(what, one.library)
            call_id = elsewhere or one.data.get("call_id") or one.span_id.hex()
            run.note_begun(one.span_id, what, call_id, one.library)
            if elsewhere is not None:
                return False
        elif self._traces.get(one.trace_id, one.process).wraps(
            one.span_id, one.parent_id, what
        ) or run.is_repeat(EndedCall(what, (one.library,), one.start, one.end, _marks(one))):
            run.begun.pop(one.span_id, None)
            return False
        begun = run.begun.get(one.span_id) or (around if is_inside else None)
        if begun is not None and one.kind is Kind.TOOL:
            one.data["call_id"] = begun[1]
        if one.end:
            run.begun.pop(one.span_id, None)
        return True

    # -- when it began and ended ----------------------------------------------------------------

    def _begin(self, run: Run, one: Observation) -> None:
        """Say that a run of another framework has begun, when the first that is heard of it arrives."""
        if run.open or (run.ended_at and (one.end or one.start) <= run.ended_at):
            return
        self._batch.set_open(run, True, run.ended_at)
        run.began_at = one.start or one.end
        data: dict[str, Any] = {"start_records": False}
        if one.library:
            data["framework"] = clean_name(one.library)
        if one.version:
            data["version"] = clean_name(one.version)
        self._emit(EventType.EXECUTION_STARTED, run, one, data, at=one.start or one.end)

    def _end_of_trace(self, one: Observation) -> None:
        """End what is open in a trace whose outermost span in this process has ended."""
        if not one.is_outermost or not one.end:
            return
        trace = self._traces.known(one.trace_id, one.process)
        if trace is not None:
            for run in list(trace.open_runs()):
                if run.began_at <= one.end:  # else it ended before there was an agent: it made one
                    self._end(run, one)

    def _end(self, run: Run, one: Observation) -> None:
        self._batch.set_open(run, False, one.end)
        failure = _failure_of(one) or run.failure
        run.failure = {}
        kind = EventType.EXECUTION_FAILED if failure else EventType.EXECUTION_COMPLETED
        if one.data.get("waiting_reason") == WaitingReason.PAUSED:
            kind = EventType.EXECUTION_PAUSED
        self._emit(kind, run, one, failure)

    # -- what -----------------------------------------------------------------------------------

    def _agent(self, run: Run, one: Observation) -> None:
        trace = self._traces.known(one.trace_id, one.process)
        nameless = trace is not None and trace.nameless
        if run.own or not nameless or not one.is_inner:
            self._end(run, one)
        else:
            run.failure = _failure_of(one) or run.failure
        # Else: an agent inside another one, both known by the service's name only. The outer one goes on.

    def _step(self, run: Run, one: Observation) -> None:
        self._emit(EventType.STEP_COMPLETED, run, one, one.data)
        run.end_step()

    def _llm(self, run: Run, one: Observation) -> None:
        run.end_step()
        run.last_llm = one.span_id.hex()
        self._emit(EventType.LLM_CALL_COMPLETED, run, one, one.data)
        if not run.own:
            run.failure = _failure_of(one)
            # Frameworks know no steps: a turn of the model is one.
            step: dict[str, Any] = {key: one.data[key] for key in _OF_STEP if key in one.data}
            step["is_model_turn"] = True
            self._emit(EventType.STEP_COMPLETED, run, one, step)

    def _tool(self, run: Run, one: Observation) -> None:
        one.data["turn"] = run.turn_of(one.span_id.hex(), one.start, one.end)
        self._emit(EventType.TOOL_CALL_COMPLETED, run, one, one.data)

    def _emit(
        self, type_: EventType, run: Run, one: Observation, data: dict[str, Any], *, at: int | None = None
    ) -> None:
        self._batch.events.append(
            AgentEvent(
                type=type_,
                time=seconds_of(one.end if at is None else at, self._now),
                agent_id=run.agent_id,
                session_id=run.session_id,
                incarnation_id=run.incarnation_id,
                graph_id=one.graph,
                node_id=one.node,
                trace_id=one.trace_id.hex(),
                span_id=one.span_id.hex(),
                data=data,
                id="",
            )
        )


def _failure_of(one: Observation) -> dict[str, Any]:
    return {key: one.data[key] for key in ("error_type", "error") if key in one.data}


def _marks(one: Observation) -> tuple[Any, ...]:
    """Return what two records of one call both say, if they say it."""
    if one.kind is Kind.TOOL:
        return one.data.get("call_id"), one.data.get("args_hash")
    return (one.data.get("output_tokens"),)


_ENDED: Final = {
    Kind.AGENT: _Assembly._agent,
    Kind.STEP: _Assembly._step,
    Kind.LLM: _Assembly._llm,
    Kind.TOOL: _Assembly._tool,
}
