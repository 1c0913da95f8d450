"""
The assembler, which turns observations of any source into events.

It decides which agent an observation belongs to, and when a run starts and ends. Work counts once, however
many records report it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from queenright.instrumentation.effects import may_name_question_tool
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.names import ToolOutcome, WaitingReason
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.telemetry.batch import Batch
from queenright.server.telemetry.client_sessions import SessionCache
from queenright.server.telemetry.dialects import COST_REPORTING_CLIENTS
from queenright.server.telemetry.duplicates import Duplicates
from queenright.server.telemetry.held_runs import HeldRuns, LostSpans
from queenright.server.telemetry.kind import ObservationKind
from queenright.server.telemetry.loose_runs import LooseRuns
from queenright.server.telemetry.messages import find_tool_calls
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.permission import format_question
from queenright.server.telemetry.pricing import Prices, TokenCounts, price_call
from queenright.server.telemetry.process import make_origin
from queenright.server.telemetry.runs import (
    MAX_TRACES,
    EndedCall,
    Trace,
    TraceCache,
    TracedRun,
    rank_name,
    rank_restored_name,
)
from queenright.server.telemetry.unusable import UnusedReason
from queenright.server.telemetry.values import to_seconds

_START_EVENTS: Final = {
    ObservationKind.AGENT: EventType.EXECUTION_STARTED,
    ObservationKind.STEP: EventType.STEP_STARTED,
    ObservationKind.LLM: EventType.LLM_CALL_STARTED,
    ObservationKind.TOOL: EventType.TOOL_CALL_STARTED,
    ObservationKind.TEXT: EventType.LLM_TEXT_DELTA,
    ObservationKind.HEARTBEAT: EventType.AGENT_HEARTBEAT,
    ObservationKind.WAIT: EventType.WORKER_WAITING,
    ObservationKind.CHECKPOINT: EventType.CHECKPOINT_SAVED,
    ObservationKind.OUTPUT: EventType.OUTPUT_REPORTED,
    ObservationKind.RESOURCE: EventType.RESOURCE_REPORTED,
    ObservationKind.BREAKER: EventType.BREAKER_REPORTED,
}
"""The event for the start of work, or for work without a duration."""


RUN_END_HOLD_SECONDS: Final = 60.0
"""Seconds to wait for more records of a run after an agent inside it has ended."""
UNSEEN_TOOL_HOLD_SECONDS: Final = 15.0
"""Seconds to wait for the span of a tool call that messages mention."""
CLOCK_TOLERANCE_NS: Final = 100_000_000
"""Nanoseconds by which work may end after its enclosing span, because clocks are inexact."""
_MAX_ANCESTORS: Final = 16
"""Maximum ancestors of a span to look up in its request."""
_MAX_SAMPLED_OBSERVATIONS: Final = 64
_MAX_SAMPLED_PER_KIND: Final = 2
"""
Maximum observations per process and kind that are inspected for `SourceData`. Each costs a tenth of its
decoding.
"""
_STEP_KEYS: Final = ("error_type", "error", "duration")
"""Fields of a model call that its step event repeats."""
_TOKEN_KEYS: Final = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


class Assembler:
    """
    Assembles events, and keeps bounded state between requests. Not thread-safe.

    Args:
        max_traces: Maximum traces to remember. The least recently seen are dropped.
        prices: Prices for model calls that do not report their cost.
    """

    def __init__(self, max_traces: int = MAX_TRACES, prices: Prices | None = None) -> None:
        self.prices = prices or {}
        self.traces = TraceCache(max_traces)
        self.sessions = SessionCache()
        self.duplicates = Duplicates()
        self.lost_spans = LostSpans()
        self.loose_runs = LooseRuns()
        self.pending_ends = HeldRuns()
        """Runs that end unless more of their records arrive."""
        self.pending_answers = HeldRuns()
        """Runs whose messages mention tool calls. Spans of these calls may still arrive."""

    def assemble(self, observations: list[Observation], batch: Batch, now: float) -> Iterator[None]:
        """
        Add the events of observations to ``batch``; yield after each observation.

        Raises:
            StillStoringError: Another request is storing one of the records.
        """
        # Sort by end, inner spans first, so that a root does not end a run before the records of its work are
        # added.
        observations += self.lost_spans.pop_due(now, self.duplicates, batch)
        observations.sort(key=_sort_key)
        assembly = _Assembly(self, observations, batch, now)
        assembly.release_held()
        remaining_samples = _MAX_SAMPLED_OBSERVATIONS
        sample_counts: dict[tuple[int, int], int] = {}
        for observation in observations:
            run = assembly.add(observation)
            if remaining_samples:
                remaining_samples -= 1
                key = id(observation.process), id(observation.kind)
                count = sample_counts.get(key, 0)
                if count < _MAX_SAMPLED_PER_KIND and run is not None:
                    sample_counts[key] = count + 1
                    source = batch.sources.for_process(observation.process, observation.library)
                    source.record(run, observation)
            yield


def _sort_key(observation: Observation) -> tuple[int, int]:
    return observation.end or observation.start, -observation.start


class _Assembly:
    """Assembles the observations of one batch."""

    def __init__(
        self, assembler: Assembler, observations: Sequence[Observation], batch: Batch, now: float
    ) -> None:
        self._traces = assembler.traces
        self._sessions = assembler.sessions
        self._duplicates = assembler.duplicates
        self._loose_runs = assembler.loose_runs
        self._pending_ends = assembler.pending_ends
        self._pending_answers = assembler.pending_answers
        self._lost_spans = assembler.lost_spans
        self._prices = assembler.prices
        self._observations = observations
        self._batch = batch
        self._now = now
        self._by_span: dict[bytes, Observation] | None = None
        self._by_trace: dict[tuple[bytes, str], list[Observation]] | None = None
        self._own_runs: dict[tuple[bytes, str, str, str], TracedRun] = {}
        self._compared_runs: set[tuple[int, bytes]] = set()
        """Runs and traces whose names were already compared with those in the batch."""
        self._roots: dict[int, tuple[int, dict[str, Any]]] = {}
        """The end and failure of runs whose outermost span arrived before its children."""

    def release_held(self) -> None:
        """End held runs that received nothing more, and emit their pending observations."""
        for run, observation in self._pending_answers.pop_due(self._now):
            self._batch.on_undo(partial(self._pending_answers.hold, run, observation, self._now))
            self._emit_answered_calls(run, observation)
        for run, observation in self._pending_ends.pop_due(self._now):
            if run.open and run.last_at <= observation.end:
                self._batch.on_undo(partial(self._pending_ends.hold, run, observation, self._now))
                self._end_run(run, observation)

    def add(self, observation: Observation) -> TracedRun | None:
        """Process one observation. Return its run, or None if the observation is not used."""
        batch = self._batch
        if observation.kind is None:
            batch.ignore(observation.process, observation.library, UnusedReason.NO_AGENT_WORK)
            self._end_trace(observation)
            return None
        if observation.report_interval is not None:
            batch.report_intervals[observation.process.incarnation_id] = observation.report_interval
        if self._is_duplicate(observation):
            batch.ignore(observation.process, observation.library, UnusedReason.REPEATED)
            return None
        if observation.awaits_span:
            self._lost_spans.hold(observation, self._now)
            trace = self._traces.find(observation.trace_id, observation.process)
            run = None if trace is None else trace.find(observation)
            if run is not None and observation.span_id in run.open_work:
                run.open_work[observation.span_id].end = observation.end
            batch.ignored += 1
            return None
        if observation.client:
            batch.identities.add(observation.identity)
            batch.accepted += 1
            session = self._sessions.get(observation.client, observation.session)
            run = session.run
            # Otherwise the session would treat retried records as duplicates.
            ended_at = None if run.open else run.ended_at
            forget = partial(self._sessions.reset, observation.client, observation.session, run.agent_id)
            batch.on_undo(partial(forget, ended_at=ended_at, has_failed=run.has_failed))
            name = session.update_name(observation)
            self._rename(session.run, observation, name, observation.session, session.origin)
            for event in session.apply(observation, int(self._now * 1e9)):
                self._emit(event.type, session.run, observation, event.data, at=event.at)
            return session.run
        is_named = observation.is_own and observation.agent and observation.session
        run = self._find_own_run(observation) if is_named else self._find_foreign_run(observation)
        if not run.is_own:
            if not self._record_work(run, observation):
                batch.ignore(observation.process, observation.library, UnusedReason.SAME_WORK)
                batch.identities.add(observation.identity)
                if observation.kind is ObservationKind.LLM:
                    # The other library may not record messages.
                    self._collect_message_calls(run, observation)
                return None
            self._begin_run(run, observation)
            run.last_at = max(run.last_at, observation.end or observation.start)
        elif observation.kind is ObservationKind.AGENT and not observation.is_own:
            # An agent of another framework inside one of Queenright's runs is part of its work.
            batch.ignore(observation.process, observation.library, UnusedReason.SAME_WORK)
            return None
        batch.identities.add(observation.identity)
        batch.accepted += 1
        if observation.end:
            _END_HANDLERS[observation.kind](self, run, observation)
        elif run.is_own or observation.kind is not ObservationKind.AGENT:
            self._emit(
                _START_EVENTS[observation.kind], run, observation, observation.data, at=observation.start
            )
        if not run.is_own:
            self._end_trace(observation)
            if id(run) in self._roots:
                at, failure = self._roots.pop(id(run))
                if run.open and run.began_at <= at:
                    self._end_run(run, observation, at, failure)
            if not run.open and run.ended_at:
                self._correct_end(run, observation)
        return run

    def _is_duplicate(self, observation: Observation) -> bool:
        """Return whether a record has arrived before, or reports the start of ended work."""
        identities, is_stored = self._batch.identities, self._duplicates.is_stored
        if observation.identity in identities or is_stored(observation.identity):
            return True
        if observation.end or observation.is_own or observation.client or not observation.span_id:
            return False
        end_identity = observation.trace_id + observation.span_id
        return end_identity in identities or is_stored(end_identity)

    # -- runs and names -------------------------------------------------------------------------

    def _find_foreign_run(self, observation: Observation) -> TracedRun:
        trace = self._traces.get(observation.trace_id, observation.process)
        run = trace.find(observation)
        if run is None:
            run = self._create_run(observation, trace)
        if not run.is_own:
            self._update_name(run, trace, observation)
        trace.record(observation, run)
        return run

    def _create_run(self, observation: Observation, trace: Trace) -> TracedRun:
        """Create the run of an unknown trace or session."""
        root = self._traces.pop_root(observation)
        outermost = self._find_outermost(observation)
        is_loose = not outermost.parent_id and outermost.kind in (ObservationKind.LLM, ObservationKind.TOOL)
        run = self._loose_runs.find(outermost, _make_ended_call(outermost)) if is_loose else None
        if run is None:
            session, incarnation = observation.session or trace.id, observation.process.incarnation_id
            run = TracedRun("", session, incarnation, has_own_session=bool(observation.session))
            if (former_name := self._traces.pop_restored_name(incarnation, session)) is not None:
                run.agent_id, run.session_id = former_name
                run.first_name, run.name = run.agent_id, rank_restored_name(run.agent_id, observation.process)
                run.has_own_session = run.session_id != trace.id
            if is_loose:
                run.is_loose = True
                self._loose_runs.add(run)
            elif root is not None:
                self._roots[id(run)] = root
        trace.add(run)
        return run

    def _find_outermost(self, observation: Observation) -> Observation:
        """Return the outermost ancestor of a span in the same request, or the span itself."""
        if self._by_span is None:
            self._by_span = {each.span_id: each for each in self._observations}
        for _ in range(_MAX_ANCESTORS):
            parent = self._by_span.get(observation.parent_id)
            if parent is None or parent.trace_id != observation.trace_id:
                break
            observation = parent
        return observation

    def _update_name(self, run: TracedRun, trace: Trace, observation: Observation) -> None:
        """Set the names of a run and its session to the best ones that are known."""
        key = id(run), observation.trace_id
        if key in self._compared_runs:
            return
        self._compared_runs.add(key)
        name, session = rank_name(observation), observation.session
        for other in self._get_trace_spans(observation):
            if other.kind is None or other.is_own or not _matches_session(other, run, session):
                continue
            name = max(name, rank_name(other))
            session = session or other.session
        agent, is_better = run.agent_id, name > run.name
        if not agent:
            run.first_name = name[3]
            agent = self._traces.find_usual_name(run.incarnation_id, name[3])
        elif is_better:
            agent = name[3]
            self._traces.record_rename(run.incarnation_id, run.first_name, agent)
        named_session = not run.has_own_session and bool(session)
        if named_session:
            trace.runs.pop(run.session_id, None)
        self._rename(run, observation, agent, session if named_session else run.session_id)
        run.name = max(name, run.name)
        run.has_own_session |= named_session
        trace.add(run)

    def _rename(
        self,
        run: TracedRun,
        observation: Observation,
        agent: str,
        session: str,
        origin: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Rename a run and its session. If they had names before, emit an event under each name."""
        former_names = {"former_agent_id": run.agent_id, "former_session_id": run.session_id}
        data = {"agent_id": agent, "session_id": session, **origin}
        is_renamed = run.agent_id and (agent, session) != (run.agent_id, run.session_id)
        if is_renamed:
            self._batch.on_undo(run.create_name_restorer())
            self._emit(EventType.AGENT_RENAMED, run, observation, data)
        run.agent_id, run.session_id = agent, session
        if is_renamed:
            self._emit(EventType.AGENT_RENAMED, run, observation, data | former_names)

    def _get_trace_spans(self, observation: Observation) -> Sequence[Observation]:
        """Return the request's observations of a trace in one process."""
        if self._by_trace is None:
            self._by_trace = {}
            for each in self._observations:
                key = each.trace_id, each.process.incarnation_id
                self._by_trace.setdefault(key, []).append(each)
        return self._by_trace.get((observation.trace_id, observation.process.incarnation_id), ())

    def _find_own_run(self, observation: Observation) -> TracedRun:
        incarnation = observation.incarnation or observation.process.incarnation_id
        key = (observation.trace_id, observation.agent, observation.session, incarnation)
        run = self._own_runs.get(key)
        if run is None:
            if observation.trace_id:
                # Unnamed spans in this trace, such as those of a model client, belong to this agent.
                trace = self._traces.get(observation.trace_id, observation.process)
                run = trace.get_own_run(observation.agent, observation.session, incarnation)
            else:
                run = TracedRun(observation.agent, observation.session, incarnation, is_own=True)
            self._own_runs[key] = run
        return run

    def _record_work(self, run: TracedRun, observation: Observation) -> bool:
        """
        Record work of another framework. Return whether it has not been counted yet.

        If two libraries instrument the same call, such as the framework and the model client, there are two
        spans, nested or adjacent. The first start and the first end count.
        """
        if not observation.end and not run.open and run.ended_at and observation.start <= run.ended_at:
            return False
        if observation.kind is ObservationKind.AGENT:
            return True
        work_key = _make_work_key(observation)
        run.has_tools |= observation.kind is ObservationKind.TOOL
        parent_work = run.open_work.get(observation.parent_id)
        is_inside = parent_work is not None and parent_work.work_key == work_key
        if not observation.end:
            if is_inside:
                return False
            other_call_id = run.find_open_elsewhere(work_key, observation.library)
            call_id = other_call_id or observation.data.get("call_id") or observation.span_id.hex()
            run.add_open_work(observation.span_id, work_key, call_id, observation.library)
            if other_call_id is not None:
                return False
        elif observation.kind is ObservationKind.TOOL and run.is_reported(
            str(observation.data.get("call_id", ""))
        ):
            return False
        elif self._traces.get(observation.trace_id, observation.process).record_nested_work(
            observation.span_id, observation.parent_id, work_key
        ) or run.record_ended_call(_make_ended_call(observation)):
            run.open_work.pop(observation.span_id, None)
            return False
        open_work = run.open_work.get(observation.span_id) or (parent_work if is_inside else None)
        if open_work is not None and observation.kind is ObservationKind.TOOL:
            observation.data["call_id"] = open_work.call_id
        if observation.end:
            run.open_work.pop(observation.span_id, None)
        return True

    # -- starts and ends ------------------------------------------------------------------------

    def _begin_run(self, run: TracedRun, observation: Observation) -> None:
        """Start a run of another framework when its first record arrives."""
        tolerance = CLOCK_TOLERANCE_NS if observation.start <= run.ended_at else 0
        if run.open or (run.ended_at and (observation.end or observation.start) <= run.ended_at + tolerance):
            return
        self._batch.set_open(run, True, run.ended_at)
        run.began_at = observation.start or observation.end
        run.failure, run.outcome_at = {}, 0
        process = observation.process
        data: dict[str, Any] = {"start_records": False} | make_origin(process.user, process.repository)
        if observation.library:
            data["framework"] = clean_name(observation.library)
        if observation.version:
            data["version"] = clean_name(observation.version)
        self._emit(
            EventType.EXECUTION_STARTED, run, observation, data, at=observation.start or observation.end
        )

    def _end_trace(self, observation: Observation) -> None:
        """End the open runs of a trace whose outermost span in this process has ended."""
        if not observation.is_outermost or not observation.end:
            return
        trace = self._traces.find(observation.trace_id, observation.process)
        if trace is None:
            self._traces.record_root(observation, observation.failure)
            return
        for run in list(trace.list_open_runs()):
            if run.is_loose:
                self._hold_end(run, observation)
            elif run.began_at <= observation.end:  # a span that ended earlier only created the agent
                self._end_run(run, observation)

    def _hold_end(self, run: TracedRun, observation: Observation) -> None:
        """End a run after ``RUN_END_HOLD_SECONDS``, unless more of its records arrive."""
        pending = self._pending_ends.get(run)
        self._pending_ends.hold(
            run,
            observation if pending is None or pending.end < observation.end else pending,
            self._now + RUN_END_HOLD_SECONDS,
        )

    def _end_run(
        self,
        run: TracedRun,
        observation: Observation,
        at: int | None = None,
        failure: dict[str, Any] | None = None,
    ) -> None:
        at = observation.end if at is None else at
        self._batch.set_open(run, False, at)
        self._pending_ends.drop(run)
        own_failure = observation.failure if failure is None else failure
        failure = own_failure or run.failure
        run.own_failure, run.has_failed = own_failure, bool(failure)
        if run.agent_id not in (run.first_name, run.name[3]):
            # Its name was guessed from earlier runs, and no record has confirmed it.
            self._traces.record_rename(run.incarnation_id, run.first_name, run.first_name)
        kind = EventType.EXECUTION_FAILED if failure else EventType.EXECUTION_COMPLETED
        if observation.data.get("waiting_reason") == WaitingReason.PAUSED:
            kind = EventType.EXECUTION_PAUSED
        self._emit(kind, run, observation, failure, at=at)

    def _correct_end(self, run: TracedRun, observation: Observation) -> None:
        """Emit a corrected end if records that arrived after the end change the outcome."""
        failure = run.own_failure or run.failure
        if bool(failure) != run.has_failed:
            run.has_failed = bool(failure)
            kind = EventType.EXECUTION_FAILED if failure else EventType.EXECUTION_COMPLETED
            self._emit(kind, run, observation, failure, at=run.ended_at)

    # -- work -----------------------------------------------------------------------------------

    def _end_agent(self, run: TracedRun, observation: Observation) -> None:
        if run.is_own:
            self._end_run(run, observation)
            return
        if failure := observation.failure:
            run.record_outcome(failure, observation.end)
        trace = self._traces.get(observation.trace_id, observation.process)
        if observation.agent and not observation.is_outermost and not trace.open_agents:
            # The agent is inside another agent or a workflow, which may continue.
            self._hold_end(run, observation)

    def _end_step(self, run: TracedRun, observation: Observation) -> None:
        self._emit(EventType.STEP_COMPLETED, run, observation, observation.data)
        run.end_step()

    def _end_llm_call(self, run: TracedRun, observation: Observation) -> None:
        if not run.is_own:
            self._collect_message_calls(run, observation)
        run.end_step()
        run.last_llm = observation.span_id.hex()
        self._emit(EventType.LLM_CALL_COMPLETED, run, observation, observation.data)
        if not run.is_own:
            run.record_outcome(observation.failure, observation.end)
            # Other frameworks have no steps, so each model turn is one.
            step: dict[str, Any] = {
                key: observation.data[key] for key in _STEP_KEYS if key in observation.data
            }
            step["is_model_turn"] = True
            self._emit(EventType.STEP_COMPLETED, run, observation, step)
            self._await_answer(run, observation)

    def _await_answer(self, run: TracedRun, observation: Observation) -> None:
        """Emit a wait for the user if a model turn asks a question. The next work of the run ends it."""
        if observation.end < run.outcome_at or not may_name_question_tool(observation.response_messages):
            return
        calls = find_tool_calls(observation.response_messages)[0]
        if question := next((call.question for call in calls if call.question), ""):
            data = {"reason": WaitingReason.USER_INPUT.value, "question": format_question(question)}
            self._emit(EventType.WORKER_WAITING, run, observation, data)

    def _collect_message_calls(self, run: TracedRun, observation: Observation) -> None:
        """Collect tool calls that appear only in the messages of a model call."""
        if (
            run.has_tools
            or not observation.end
            or not (observation.request_messages or observation.response_messages)
        ):
            return
        requested_calls, results = find_tool_calls(observation.request_messages)
        for call in requested_calls + find_tool_calls(observation.response_messages)[0]:
            run.add_requested_call(call)
        for result in results:
            run.add_result(result, observation.start, observation.span_id.hex())
        if self._pending_answers.get(run) is None:
            self._pending_answers.hold(run, observation, self._now + UNSEEN_TOOL_HOLD_SECONDS)

    def _emit_answered_calls(self, run: TracedRun, observation: Observation) -> None:
        """Emit the tool calls that only messages report."""
        if run.has_tools:
            return
        for call, result, at, turn in run.pop_answered_calls():
            self._batch.on_undo(partial(run.restore_result, result, at, turn))
            data = {"tool": call.tool, "call_id": call.id, "args_hash": call.args_hash, **call.effect}
            data["result_hash"] = result.result_hash
            data["outcome"] = (ToolOutcome.ERROR if result.has_failed else ToolOutcome.OK).value
            data["turn"] = turn
            self._emit(EventType.TOOL_CALL_COMPLETED, run, observation, data, at=at)

    def _end_tool_call(self, run: TracedRun, observation: Observation) -> None:
        observation.data["turn"] = run.assign_turn(
            observation.span_id.hex(), observation.start, observation.end
        )
        self._emit(EventType.TOOL_CALL_COMPLETED, run, observation, observation.data)

    def _emit(
        self,
        type_: EventType,
        run: TracedRun,
        observation: Observation,
        data: dict[str, Any],
        *,
        at: int | None = None,
    ) -> None:
        events = self._batch.renames if type_ is EventType.AGENT_RENAMED else self._batch.events
        if type_ is EventType.LLM_CALL_COMPLETED:
            data = self._add_cost(observation, data)
        at = observation.end if at is None else at
        if run.ended_at and not run.open and not run.is_own:
            at = min(at, run.ended_at)  # late work does not make an ended run active again
        events.append(
            AgentEvent(
                type=type_,
                time=to_seconds(at, self._now),
                agent_id=run.agent_id,
                session_id=run.session_id,
                incarnation_id=run.incarnation_id,
                graph_id=observation.graph,
                node_id=observation.node,
                trace_id=observation.trace_id.hex(),
                span_id=observation.span_id.hex(),
                data=data,
                id="",
            )
        )

    def _add_cost(self, observation: Observation, data: dict[str, Any]) -> dict[str, Any]:
        """
        Add the price of a model call, if the table has one.

        Calls of a client that reports costs are not priced, because the cost may arrive in a later record.
        """
        if "cost_usd" in data or observation.client in COST_REPORTING_CLIENTS or not self._prices:
            return data
        tokens = (data.get(key) or 0 for key in _TOKEN_KEYS)
        cost = price_call(data.get("model") or "", TokenCounts(*tokens), self._prices)
        return data if cost is None else data | {"cost_usd": float(cost)}


def _make_work_key(observation: Observation) -> str:
    """Return the key by which equal work is matched: the kind, and the tool of a tool call."""
    return (
        f"{observation.kind} {observation.data['tool']}"
        if observation.kind is ObservationKind.TOOL
        else str(observation.kind)
    )


def _make_ended_call(observation: Observation) -> EndedCall:
    is_tool = observation.kind is ObservationKind.TOOL
    content_mark = observation.data.get("args_hash" if is_tool else "output_tokens")
    id_ = observation.data.get("call_id", "") if is_tool else observation.call
    return EndedCall(
        _make_work_key(observation),
        (observation.library,),
        observation.start,
        observation.end or observation.start,
        id_,
        content_mark,
    )


def _matches_session(observation: Observation, run: TracedRun, session: str) -> bool:
    """Return whether a span of a run's trace may belong to the run's session."""
    if not observation.session or observation.session == run.session_id:
        return True
    return not run.has_own_session and session in ("", observation.session)


_END_HANDLERS: Final = {
    ObservationKind.AGENT: _Assembly._end_agent,
    ObservationKind.STEP: _Assembly._end_step,
    ObservationKind.LLM: _Assembly._end_llm_call,
    ObservationKind.TOOL: _Assembly._end_tool_call,
}
