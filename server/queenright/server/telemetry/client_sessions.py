"""Sessions of coding agents. Hooks, logs and spans may report the same session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from queenright.instrumentation.names import ToolOutcome, WaitingReason
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.telemetry.bounded_dict import make_room
from queenright.server.telemetry.calls import MAX_CALLS, Call, Calls
from queenright.server.telemetry.kind import ObservationKind
from queenright.server.telemetry.observation import Observation, read_failure
from queenright.server.telemetry.process import make_client_name, make_origin
from queenright.server.telemetry.runs import TracedRun

MAX_SESSIONS: Final = 5_000
MAX_TURNS: Final = 256
MAX_CONTINUED_CALLS: Final = 256
MAX_MCP_CHANGES: Final = 64

ANSWERED_SUFFIX: Final = b"\nanswered"
"""Suffix of the identity of an observation that reports the answer to a permission request."""
_MAX_TRANSIT_NS: Final = 30 * 1_000_000_000
"""Maximum nanoseconds that exporters take to send a record."""
_PROMPT_TOLERANCE_NS: Final = 5 * 1_000_000_000
"""Nanoseconds within which two sources report the same prompt. Not all sources have the prompt's id."""
_WAIT_ENDS: Final = frozenset({EventType.TOOL_CALL_STARTED, EventType.LLM_CALL_STARTED})
"""Events that end a wait, because they show that the worker works."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A permission request, with the id of its call, or "" if unknown, and its event data."""

    call: str
    at: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    """An event of the session to emit. ``at`` is in nanoseconds since the epoch."""

    type: EventType
    at: int
    data: dict[str, Any]


class ClientSession:
    """
    One session. Converts its records into events, in any order of arrival, and counts each call once.

    Few coding agents report when a model call starts. The start is inferred from a prompt and from the end of
    the last tool call.
    """

    def __init__(self, run: TracedRun) -> None:
        self.run = run
        self._restored_name = run.agent_id
        """The agent's name before a restart of the service."""
        self._owner = self._user = self._repository = self._folder = ""
        self._calls = Calls()
        self._turns: dict[str, bool] = {}
        """Prompt ids, and whether their turn has ended."""
        self._prompted_at = 0
        self._prompt_sources: set[str] = set()
        """The sources that reported the last prompt."""
        self._clock_lead = 0
        """Lower bound of the nanoseconds by which the client's clock is ahead of the service's."""
        self._is_turn_over = False
        """Whether the last turn has ended. Sub-agents do any later work."""
        self._last_activity_at = 0
        """The time of the latest activity. Older records do not change the current state."""
        self._is_model_pending = False
        self._model_started_at = 0
        self._requests: dict[bytes, _Request] = {}
        """Open permission requests, by identity."""
        self._failure: dict[str, Any] = {"error_type": "error"} if run.has_failed else {}
        """The failure of the last model call, if it failed."""
        self._answered_at = run.ended_at if run.has_failed else 0
        """The end of the last model call."""
        self._continued_calls: dict[str, Call | Observation] = {}
        """Calls that continue after their first result, or the end of such a call if it arrived first."""
        self._notes: dict[str, dict[str, Any]] = {}
        """Data of open tool calls, by call id."""
        self._mcp_changes: list[PlannedEvent] = []
        """Changes of MCP servers that arrived before the session started."""

    def update_name(self, observation: Observation) -> str:
        """
        Update the agent's name from a record, and return it.

        Each source knows some parts of the name. The first value of a part is kept, so an agent that changes
        its folder keeps its name.
        """
        if not self._owner or observation.process.owner.count("@") > self._owner.count("@"):
            self._owner = observation.process.owner
        self._user = self._user or observation.process.user or observation.user
        self._repository = self._repository or observation.process.repository
        self._folder = self._folder or observation.folder
        name = make_client_name(observation.client, self._owner, self._repository or self._folder)
        is_better = name.count("/") > self._restored_name.count("/")
        return name if is_better or not self._restored_name else self._restored_name

    @property
    def origin(self) -> dict[str, str]:
        """The known user and repository of the session."""
        return make_origin(self._user, self._repository or self._folder)

    def restore(self, event: AgentEvent) -> None:
        """Restore state from a stored event: a counted call, a wait, or a pending model call."""
        at = round(event.time * 1e9)
        self._last_activity_at = max(self._last_activity_at, at)
        if event.type is EventType.WORKER_WAITING:
            self._restore_wait(event.data, at)
        elif event.type is EventType.LLM_CALL_STARTED:
            self._is_model_pending, self._model_started_at, self._is_turn_over = True, at, False
            self._requests.clear()
        else:
            self._restore_call(event, at)

    def _restore_wait(self, data: Mapping[str, Any], at: int) -> None:
        self._is_model_pending = False
        if data.get("reason") != WaitingReason.USER_INPUT or "tool" not in data:
            self._requests.clear()
            self._is_turn_over = data.get("reason") == WaitingReason.USER_INPUT
            return
        call = self._calls.find_open(
            data["tool"], None, {request.call for request in self._requests.values()}
        )
        identity = f"{data['tool']}\n{data.get('question')}".encode()
        self._requests[identity] = _Request("" if call is None else call.id, at, dict(data))

    def _restore_call(self, event: AgentEvent, at: int) -> None:
        data = event.data
        kind = ObservationKind.LLM if event.type is EventType.LLM_CALL_COMPLETED else ObservationKind.TOOL
        started_at = at - round((data.get("duration") or 0.0) * 1e9)
        ended_at = 0 if event.type is EventType.TOOL_CALL_STARTED else at
        call = self._calls.restore(kind, data.get("call_id", ""), data.get("tool", ""), started_at, ended_at)
        call.has_failed |= "error_type" in data
        if kind is ObservationKind.LLM and not data.get("amends"):
            call.unpriced_tokens = _count_tokens(data)
        call.has_cost |= "cost_usd" in data
        if data.get("amends"):
            return
        self._is_model_pending = (
            self._is_model_pending and kind is ObservationKind.LLM and at < self._model_started_at
        )
        if kind is ObservationKind.LLM and at >= self._answered_at:
            self._failure, self._answered_at = read_failure(data), at

    def _adjust_clock(self, observation: Observation, now: int) -> None:
        """
        Subtract the lead of the client's clock from the times of a record.

        No record arrives before it happens, so the fastest record shows the lead. A clock that is behind
        looks like slow delivery and is not corrected.
        """
        at = observation.end or observation.start
        if at == now:
            return  # a hook call without a time uses the service's clock
        if self._clock_lead > 2 * _MAX_TRANSIT_NS and 0 <= now - at < _MAX_TRANSIT_NS:
            self._clock_lead = 0  # the client's clock was corrected
        self._clock_lead = max(self._clock_lead, at - now)
        observation.clock_shift = self._clock_lead
        if self._clock_lead:
            observation.start -= self._clock_lead
            observation.end -= self._clock_lead if observation.end else 0
            ended_at = self.run.ended_at
            if observation.end and not self.run.open and 0 < observation.end - ended_at < _MAX_TRANSIT_NS:
                # The end came from a hook with the service's time. This record is late by at most its
                # delivery time.
                observation.start, observation.end = min(observation.start, ended_at), ended_at

    def apply(self, observation: Observation, now: int) -> Iterator[PlannedEvent]:
        """Yield the events of a record. ``now`` is in nanoseconds since the epoch."""
        self._adjust_clock(observation, now)
        at = observation.end or observation.start
        if observation.kind is ObservationKind.MCP_SERVER:
            yield from self._apply_mcp_change(observation, at)
            return
        if observation.kind is ObservationKind.AGENT and observation.end:
            yield from self._end_session(at)
            return
        if not self.run.open:
            if self.run.ended_at and observation.start <= self.run.ended_at:
                # Late work is counted, but does not reopen the session.
                yield from self._apply_work(observation, at)
                if bool(self._failure) != self.run.has_failed:
                    yield self._create_end()
                return
            self.run.open = True
            start = {"framework": observation.library, "version": observation.version, "start_records": True}
            fields = {k: v for k, v in start.items() if v != ""}
            yield PlannedEvent(EventType.EXECUTION_STARTED, observation.start, fields | self.origin)
            changes, self._mcp_changes = self._mcp_changes, []
            yield from changes
        is_working = False
        for change in self._apply_work(observation, at):
            is_working |= change.type in _WAIT_ENDS
            yield change
        if is_working and self._requests:
            yield self._create_wait_change(at)  # another call or sub-agent still waits

    def _apply_work(self, observation: Observation, at: int) -> Iterator[PlannedEvent]:
        is_current = self.run.open and at >= self._last_activity_at
        self._last_activity_at = max(self._last_activity_at, at)
        match observation.kind:
            case ObservationKind.TURN:
                yield from self._apply_turn(observation, at, is_current)
            case ObservationKind.LLM:
                yield from self._apply_model_call(observation, at, is_current)
            case ObservationKind.TOOL:
                yield from self._apply_tool_call(observation, at, is_current)
            case ObservationKind.WAIT:
                yield from self._apply_wait(observation, at, is_current)
            case ObservationKind.NOTE:
                make_room(self._notes, MAX_CALLS)
                self._notes[str(observation.data.get("call_id"))] = observation.failure

    def _apply_mcp_change(self, observation: Observation, at: int) -> Iterator[PlannedEvent]:
        """
        Report a change of an MCP server. It is not work, so it neither starts a session nor ends a wait.

        A client connects before its first prompt and disconnects when it exits.
        """
        if self.run.open and at <= self.run.ended_at:
            return  # late, from an earlier run
        change = PlannedEvent(EventType.MCP_SERVER_CHANGED, at, observation.data)
        if self.run.open or self.run.ended_at:
            yield change
        elif len(self._mcp_changes) < MAX_MCP_CHANGES:
            self._mcp_changes.append(change)

    def _apply_wait(self, observation: Observation, at: int, is_current: bool) -> Iterator[PlannedEvent]:
        if observation.end:
            request_id = observation.identity.removesuffix(ANSWERED_SUFFIX)
            yield from self._end_wait([request_id] if request_id in self._requests else [], at)
        elif is_current and observation.is_of_open_call:
            call = self._calls.find_newest_open()
            if call is not None and not self._requests:
                data = observation.data | {"tool": call.tool}
                self._requests[observation.identity] = _Request(call.id, at, data)
                yield PlannedEvent(EventType.WORKER_WAITING, at, data)
        elif is_current:
            self._is_model_pending = False
            data = {key: value for key, value in observation.data.items() if key != "args_hash"}
            if "tool" in data:
                make_room(self._requests, MAX_CALLS)
                requested_calls = {request.call for request in self._requests.values()}
                call = self._calls.find_open(data["tool"], observation.data.get("args_hash"), requested_calls)
                self._requests[observation.identity] = _Request("" if call is None else call.id, at, data)
            yield PlannedEvent(EventType.WORKER_WAITING, at, data)

    def _create_wait_change(self, at: int) -> PlannedEvent:
        """Return a change to the current wait, or to no wait."""
        last_request = next(reversed(self._requests.values()), None)
        return PlannedEvent(
            EventType.WORKER_WAITING, at, {"reason": None} if last_request is None else last_request.data
        )

    def _end_wait(self, answered_ids: Sequence[bytes], at: int) -> Iterator[PlannedEvent]:
        """Close answered permission requests."""
        for identity in answered_ids:
            del self._requests[identity]
        if answered_ids:
            yield self._create_wait_change(at)

    def _find_answered_requests(
        self, call: Call, at: int, *, is_decision: bool, is_current: bool
    ) -> list[bytes]:
        """
        Return the requests that a record of a call answers, because the call was decided or ended.

        Only hooks report a call before a person is asked. Any other record of the call is a decision. Its
        clock may be behind the service's.
        """
        answered_ids = []
        for identity, request in self._requests.items():
            if request.call == call.id:
                is_answered = is_decision or at >= request.at
            else:
                is_answered = is_current and at >= request.at and not request.call
                is_answered = is_answered and request.data["tool"] == call.tool
            if is_answered:
                answered_ids.append(identity)
        return answered_ids

    def is_request_open(self, identity: bytes) -> bool:
        """Return whether a permission request is still open."""
        return identity in self._requests

    def _apply_turn(self, observation: Observation, at: int, is_current: bool) -> Iterator[PlannedEvent]:
        is_over = self._turns.get(observation.call) if observation.call else None
        if observation.end:
            self._record_turn(observation.call, True)
            self._requests.clear()
            self._failure = observation.failure or self._failure
            if is_current:
                self._is_model_pending, self._is_turn_over = False, True
                yield PlannedEvent(EventType.WORKER_WAITING, at, {"reason": WaitingReason.USER_INPUT.value})
        elif is_over is None:
            self._record_turn(observation.call, False)
            if is_current:
                self._is_turn_over = False
                if self._record_prompt(observation):
                    yield PlannedEvent(EventType.CLIENT_INPUT_RECEIVED, at, {})
                yield from self._begin_model_call(at)

    def _record_prompt(self, observation: Observation) -> bool:
        """Record the start of a turn. Return whether it has a prompt that no other source has reported."""
        if observation.subagent:
            return False
        is_near = abs(observation.start - self._prompted_at) <= _PROMPT_TOLERANCE_NS
        if is_near and observation.source not in self._prompt_sources:
            self._prompt_sources.add(observation.source)
            return False
        self._prompted_at, self._prompt_sources = observation.start, {observation.source}
        return True

    def _record_turn(self, prompt: str, is_over: bool) -> None:
        if not prompt:
            return
        make_room(self._turns, MAX_TURNS)
        self._turns[prompt] = is_over

    def _apply_model_call(
        self, observation: Observation, at: int, is_current: bool
    ) -> Iterator[PlannedEvent]:
        if not observation.end:
            if is_current:
                yield from self._begin_model_call(at)
                self._model_started_at = at
            return
        call, is_new = self._calls.record(observation, ObservationKind.LLM)
        cost = observation.data.get("cost_usd")
        if not is_new:
            if cost is not None and not call.has_cost:
                # The first source of the call did not report its cost.
                call.has_cost = True
                data = {"cost_usd": cost, "amends": True, "priced_tokens": call.unpriced_tokens}
                yield PlannedEvent(EventType.LLM_CALL_COMPLETED, call.end, data)
            return
        call.has_cost = cost is not None
        call.unpriced_tokens = 0 if call.has_cost else _count_tokens(observation.data)
        self._calls.end(call, observation.end)
        failure = observation.failure
        if observation.end >= self._answered_at:
            self._failure, self._answered_at = failure, observation.end
        step = failure | {key: observation.data[key] for key in ("duration",) if key in observation.data}
        yield PlannedEvent(EventType.LLM_CALL_COMPLETED, observation.end, observation.data)
        if observation.is_step:
            # A turn of the model is a step, which precedes its tool calls.
            yield PlannedEvent(EventType.STEP_COMPLETED, observation.end, step | {"is_model_turn": True})
            self.run.last_llm = str(observation.end)
        if observation.end >= self._model_started_at:
            self._is_model_pending = False
        elif self._is_model_pending:
            # This is a late record of an earlier call. The current call is still open.
            yield PlannedEvent(EventType.LLM_CALL_STARTED, self._model_started_at, {})
        if is_current and observation.requested_tools is not None:
            yield from self._start_tools(observation, observation.requested_tools)

    def _start_tools(self, observation: Observation, tools: tuple[str, ...]) -> Iterator[PlannedEvent]:
        """Start the tool calls of a model response. A response without tool calls ends the turn."""
        if not tools:
            yield PlannedEvent(
                EventType.WORKER_WAITING, observation.end, {"reason": WaitingReason.USER_INPUT.value}
            )
        for index, tool in enumerate(tools):
            start = replace(
                observation,
                kind=ObservationKind.TOOL,
                start=observation.end + index,
                end=0,
                data={"tool": tool},
            )
            yield from self._apply_tool_call(start, start.start, True)

    def _apply_tool_call(self, observation: Observation, at: int, is_current: bool) -> Iterator[PlannedEvent]:
        if observation.continuation and observation.end:
            continued_call = self._continued_calls.pop(observation.continuation, None)
            if not isinstance(continued_call, Call):
                self._keep_continued(observation.continuation, observation)
                return
            known_data = {"tool": continued_call.tool} | (
                {"args_hash": continued_call.arguments} if continued_call.arguments else {}
            )
            observation = replace(
                observation, call=continued_call.id, continuation="", data=observation.data | known_data
            )
        call, is_new = self._calls.record(observation, ObservationKind.TOOL)
        if observation.continuation:
            pending_end = self._continued_calls.pop(observation.continuation, None)
            self._keep_continued(observation.continuation, call)
            if isinstance(pending_end, Observation):
                if is_new:
                    yield PlannedEvent(
                        EventType.TOOL_CALL_STARTED,
                        observation.start,
                        observation.data | {"call_id": call.id},
                    )
                yield from self._apply_tool_call(pending_end, pending_end.end, is_current)
                return
        if call.end:
            yield from self._correct_to_failed(call, observation)
            return
        if not is_new:
            # The call started before the request, so either the client decided or the tool ended.
            is_decision = observation.source != "hook"
            answered_ids = self._find_answered_requests(
                call, at, is_decision=is_decision, is_current=is_current
            )
            yield from self._end_wait(answered_ids, at)
        # The start of a call without an id was stored before a restart, so its end closes any call of the
        # same tool.
        is_begin_unknown = is_new and is_current and not observation.call and observation.end > 0
        data = observation.data | {"call_id": "" if is_begin_unknown else call.id}
        if not observation.end:
            if is_new:
                self._is_model_pending = False
                self._is_turn_over = self._is_turn_over and bool(observation.subagent)
                data.pop("args_hash", None)
                data.pop("effect", None)
                yield PlannedEvent(EventType.TOOL_CALL_STARTED, observation.start, data)
            return
        self._calls.end(call, observation.end)
        if call.effect:
            data.setdefault("effect", call.effect)
        data |= self._notes.pop(call.id, {})
        if "duration" not in data and observation.end > call.start:
            data["duration"] = (observation.end - call.start) / 1e9
        if "error_type" in data and data.get("outcome") == ToolOutcome.OK:
            data["outcome"] = ToolOutcome.ERROR.value
        call.has_failed = "error_type" in data
        data["turn"] = self.run.last_llm or call.id
        if call.subagent:
            data["subagent"], data["turn"] = call.subagent, f"{call.subagent} {data['turn']}"
        yield PlannedEvent(EventType.TOOL_CALL_COMPLETED, observation.end, data)
        if is_current and not self._calls.is_open(ObservationKind.TOOL):
            if self._is_turn_over and call.subagent:
                # It is unknown whether the sub-agent continues. Its parent waits for a prompt.
                yield PlannedEvent(EventType.WORKER_WAITING, at, {"reason": WaitingReason.USER_INPUT.value})
            else:
                yield from self._begin_model_call(at)

    def _keep_continued(self, continuation: str, observation: Call | Observation) -> None:
        make_room(self._continued_calls, MAX_CONTINUED_CALLS)
        self._continued_calls[continuation] = observation

    def _correct_to_failed(self, call: Call, observation: Observation) -> Iterator[PlannedEvent]:
        """Mark an ended call as failed if another source reported its end without the failure."""
        failure = observation.failure
        if not observation.end or not failure or call.has_failed:
            return
        call.has_failed = True
        data = {"tool": call.tool, "call_id": call.id, "outcome": ToolOutcome.ERROR.value, "amends": True}
        yield PlannedEvent(EventType.TOOL_CALL_COMPLETED, call.end, data | failure)

    def _begin_model_call(self, at: int) -> Iterator[PlannedEvent]:
        if not self._is_model_pending:
            self._is_model_pending, self._model_started_at = True, at
            self._requests.clear()
            yield PlannedEvent(EventType.LLM_CALL_STARTED, at, {})

    def _end_session(self, at: int) -> Iterator[PlannedEvent]:
        if not self.run.open:
            return
        self.run.open, self.run.ended_at = False, at
        self._last_activity_at = max(self._last_activity_at, at)
        yield self._create_end()

    def _create_end(self) -> PlannedEvent:
        """Return the end of the session with its known outcome."""
        self.run.has_failed = bool(self._failure)
        kind = EventType.EXECUTION_FAILED if self._failure else EventType.EXECUTION_COMPLETED
        return PlannedEvent(kind, self.run.ended_at, self._failure)


def _count_tokens(data: Mapping[str, Any]) -> int:
    return (data.get("input_tokens") or 0) + (data.get("output_tokens") or 0)


class SessionCache:
    """Sessions by client and id. The least recently seen are dropped first."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], ClientSession] = {}

    def get(self, client: str, session: str) -> ClientSession:
        """Return a session. Create it without a name if it is new."""
        key = (client, session)
        session_state = self._sessions.pop(key, None)
        return self._keep(key, session_state or ClientSession(TracedRun("", session, session)))

    def reset(self, client: str, session: str, agent: str, *, ended_at: int | None, has_failed: bool) -> None:
        """
        Reset a session to its agent's name and its end.

        Args:
            client: The coding agent.
            session: The session id.
            agent: The agent's name, or "".
            ended_at: The end of the session, in nanoseconds since the epoch; None if it is open.
            has_failed: Whether it ended with a failure.
        """
        run = TracedRun(agent, session, session, open=ended_at is None, ended_at=ended_at or 0)
        run.has_failed = has_failed
        self._keep((client, session), ClientSession(run))

    def restore(self, event: AgentEvent) -> None:
        """Restore state of a known session from a stored event."""
        session = self._sessions.get((event.agent_id.partition("/")[0], event.session_id))
        if session is not None:
            session.restore(event)

    def _keep(self, key: tuple[str, str], session: ClientSession) -> ClientSession:
        make_room(self._sessions, MAX_SESSIONS)
        self._sessions[key] = session
        return session
