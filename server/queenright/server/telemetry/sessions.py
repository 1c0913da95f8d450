"""Sessions of coding agents: each has an id of its own, and any number of sources that tell of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from queenright.instrumentation.names import ToolOutcome, WaitingReason
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.telemetry.calls import MAX_CALLS, Call, Calls
from queenright.server.telemetry.kind import Kind
from queenright.server.telemetry.observation import Observation
from queenright.server.telemetry.process import client_name
from queenright.server.telemetry.runs import Run

MAX_SESSIONS: Final = 5_000
MAX_TURNS: Final = 256
MAX_CONTINUED: Final = 256
MAX_MCP_CHANGES: Final = 64

_FAILURE: Final = ("error_type", "error")


ANSWERED_SUFFIX: Final = b"\nanswered"
"""Ends the identity of what says that the permission request of the identity before it was answered."""
_MAX_TRANSIT: Final = 30 * 1_000_000_000
"""Nanoseconds by which times of a clock that is ahead may still be late: what exporters take to send."""
_ENDS_WAIT: Final = frozenset({EventType.TOOL_CALL_STARTED, EventType.LLM_CALL_STARTED})
"""What shows that a worker works, and ends its wait."""


@dataclass(frozen=True, slots=True)
class _Request:
    """A permission request: which call it is about, "" if that is not known, and what is shown of it."""

    call: str
    at: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes an event of the session; ``at`` in nanoseconds."""

    type: EventType
    at: int
    data: dict[str, Any]


class Session:
    """
    One session: what its records say becomes what it does, once each, in whatever order they come.

    Few coding agents say when they ask their model: they do once they have a prompt, and once the last of
    their tools has answered.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._known_as = run.agent_id
        """What its agent was called before the service was started anew."""
        self._owner = self._repository = self._folder = ""
        self._calls = Calls()
        self._turns: dict[str, bool] = {}
        """Prompts, and whether their turn is over."""
        self._clock_lead = 0
        """By how much its client's clock is ahead of ours at least, in nanoseconds."""
        self._is_turn_over = False
        """The last turn has ended, and what is done since is done by sub-agents."""
        self._last = 0
        """When it last did something: an older record says nothing of what it does now."""
        self._is_model_pending = False
        self._model_asked_at = 0
        self._requests: dict[bytes, _Request] = {}
        """What a person is asked, by the identity of the request."""
        self._failure: dict[str, Any] = {"error_type": "error"} if run.has_failed else {}
        """Of its last model call, if that failed."""
        self._answered_at = run.ended_at if run.has_failed else 0
        """When its last model call ended."""
        self._continued: dict[str, Call | Observation] = {}
        """Calls that go on after their answer; or the end of one, where that was told first."""
        self._notes: dict[str, dict[str, Any]] = {}
        """What is known of tool calls of which the end has not come, by their id."""
        self._mcp_changes: list[Change] = []
        """What was reported of MCP servers before the session is known to have begun."""

    def name_by(self, observation: Observation) -> str:
        """
        Return what its agent is called, by all that its records have said until this one.

        Sources know different parts of it. The first to know a part names it: an agent that goes to another
        folder goes by the same name.
        """
        if not self._owner or observation.process.owner.count("@") > self._owner.count("@"):
            self._owner = observation.process.owner
        self._repository = self._repository or observation.process.repository
        self._folder = self._folder or observation.folder
        name = client_name(observation.client, self._owner, self._repository or self._folder)
        is_better = name.count("/") > self._known_as.count("/")
        return name if is_better or not self._known_as else self._known_as

    def restore(self, event: AgentEvent) -> None:
        """Take in what was told before: a call that counts already, a wait, or that it asked its model."""
        at = round(event.time * 1e9)
        self._last = max(self._last, at)
        if event.type is EventType.WORKER_WAITING:
            self._recall_wait(event.data, at)
        elif event.type is EventType.LLM_CALL_STARTED:
            self._is_model_pending, self._model_asked_at, self._is_turn_over = True, at, False
            self._requests.clear()
        else:
            self._recall_call(event, at)

    def _recall_wait(self, data: Mapping[str, Any], at: int) -> None:
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

    def _recall_call(self, event: AgentEvent, at: int) -> None:
        data = event.data
        kind = Kind.LLM if event.type is EventType.LLM_CALL_COMPLETED else Kind.TOOL
        began = at - round((data.get("duration") or 0.0) * 1e9)
        ended = 0 if event.type is EventType.TOOL_CALL_STARTED else at
        call = self._calls.restore(kind, data.get("call_id", ""), data.get("tool", ""), began, ended)
        call.has_failed |= "error_type" in data
        if kind is Kind.LLM and not data.get("amends"):
            call.unpriced_tokens = _tokens_of(data)
        call.has_cost |= "cost_usd" in data
        if data.get("amends"):
            return
        self._is_model_pending = self._is_model_pending and kind is Kind.LLM and at < self._model_asked_at
        if kind is Kind.LLM and at >= self._answered_at:
            self._failure, self._answered_at = {k: data[k] for k in _FAILURE if k in data}, at

    def _adjust_clock(self, observation: Observation, now: int) -> None:
        """
        Move the times of a record by what its client's clock is ahead of ours.

        Nothing arrives before it happens, so the fastest record says by how much. A clock that is behind
        looks like records that took long, and is left alone.
        """
        at = observation.end or observation.start
        if at == now:
            return  # a hook call that says no time: it has ours
        if self._clock_lead > 2 * _MAX_TRANSIT and 0 <= now - at < _MAX_TRANSIT:
            self._clock_lead = 0  # by such a clock this would have taken long to arrive: it was set right
        self._clock_lead = max(self._clock_lead, at - now)
        observation.clock_shift = self._clock_lead
        if self._clock_lead:
            observation.start -= self._clock_lead
            observation.end -= self._clock_lead if observation.end else 0
            ended_at = self.run.ended_at
            if observation.end and not self.run.open and 0 < observation.end - ended_at < _MAX_TRANSIT:
                # Told by a hook, the end has our time; this one has at most what it took to arrive too much.
                observation.start, observation.end = min(observation.start, ended_at), ended_at

    def take(self, observation: Observation, now: int) -> Iterator[Change]:
        """Take in what one record says; ``now`` in nanoseconds since the epoch."""
        self._adjust_clock(observation, now)
        at = observation.end or observation.start
        if observation.kind is Kind.MCP_SERVER:
            yield from self._mcp_server(observation, at)
            return
        if observation.kind is Kind.AGENT and observation.end:
            yield from self._end(at)
            return
        if not self.run.open:
            if self.run.ended_at and observation.start <= self.run.ended_at:
                # Late: what was done counts, and the session stays over.
                yield from self._work(observation, at)
                if bool(self._failure) != self.run.has_failed:
                    yield self._ended()
                return
            self.run.open = True
            start = {"framework": observation.library, "version": observation.version, "start_records": True}
            yield Change(
                EventType.EXECUTION_STARTED, observation.start, {k: v for k, v in start.items() if v != ""}
            )
            changes, self._mcp_changes = self._mcp_changes, []
            yield from changes
        is_working = False
        for change in self._work(observation, at):
            is_working |= change.type in _ENDS_WAIT
            yield change
        if is_working and self._requests:
            yield self._wait_change(at)  # another of its calls, or a sub-agent, works on meanwhile

    def _work(self, observation: Observation, at: int) -> Iterator[Change]:
        is_news = self.run.open and at >= self._last
        self._last = max(self._last, at)
        match observation.kind:
            case Kind.TURN:
                yield from self._turn(observation, at, is_news)
            case Kind.LLM:
                yield from self._model(observation, at, is_news)
            case Kind.TOOL:
                yield from self._tool(observation, at, is_news)
            case Kind.WAIT:
                yield from self._wait(observation, at, is_news)
            case Kind.NOTE:
                while len(self._notes) >= MAX_CALLS:
                    del self._notes[next(iter(self._notes))]
                self._notes[str(observation.data.get("call_id"))] = _failure_of(observation)

    def _mcp_server(self, observation: Observation, at: int) -> Iterator[Change]:
        """
        Report what became of an MCP server. It is no work: it neither begins a session nor ends a wait.

        A client connects before its first prompt, and disconnects when it exits.
        """
        if self.run.open and at <= self.run.ended_at:
            return  # late, and of the run before
        change = Change(EventType.MCP_SERVER_CHANGED, at, observation.data)
        if self.run.open or self.run.ended_at:
            yield change
        elif len(self._mcp_changes) < MAX_MCP_CHANGES:
            self._mcp_changes.append(change)

    def _wait(self, observation: Observation, at: int, is_news: bool) -> Iterator[Change]:
        if observation.end:
            asked = observation.identity.removesuffix(ANSWERED_SUFFIX)
            yield from self._end_wait([asked] if asked in self._requests else [], at)
        elif is_news:
            self._is_model_pending = False
            data = {key: value for key, value in observation.data.items() if key != "args_hash"}
            if "tool" in data:
                while len(self._requests) >= MAX_CALLS:
                    del self._requests[next(iter(self._requests))]
                requested_calls = {request.call for request in self._requests.values()}
                call = self._calls.find_open(data["tool"], observation.data.get("args_hash"), requested_calls)
                self._requests[observation.identity] = _Request("" if call is None else call.id, at, data)
            yield Change(EventType.WORKER_WAITING, at, data)

    def _wait_change(self, at: int) -> Change:
        """Return that it waits for its person, or that it waits no longer."""
        last = next(reversed(self._requests.values()), None)
        return Change(EventType.WORKER_WAITING, at, {"reason": None} if last is None else last.data)

    def _end_wait(self, answered: Sequence[bytes], at: int) -> Iterator[Change]:
        """End the wait for these permissions: the person, or we, have answered."""
        for identity in answered:
            del self._requests[identity]
        if answered:
            yield self._wait_change(at)

    def _find_answered_requests(
        self, call: Call, at: int, *, is_decision: bool, is_news: bool
    ) -> list[bytes]:
        """
        Return which requests are over as this call was decided on, or ended, at this time.

        Only hooks tell of a call before a person is asked: what else tells of it is a decision, by a clock
        that may be behind ours.
        """
        found = []
        for identity, request in self._requests.items():
            if request.call == call.id:
                is_over = is_decision or at >= request.at
            else:
                is_over = is_news and at >= request.at and not request.call
                is_over = is_over and request.data["tool"] == call.tool
            if is_over:
                found.append(identity)
        return found

    def is_asked(self, identity: bytes) -> bool:
        """Return whether a permission request waits for its person, as far as is known."""
        return identity in self._requests

    def _turn(self, observation: Observation, at: int, is_news: bool) -> Iterator[Change]:
        is_over = self._turns.get(observation.call) if observation.call else None
        if observation.end:
            self._note_turn(observation.call, True)
            self._requests.clear()
            self._failure = _failure_of(observation) or self._failure
            if is_news:
                self._is_model_pending, self._is_turn_over = False, True
                yield Change(EventType.WORKER_WAITING, at, {"reason": WaitingReason.USER_INPUT.value})
        elif is_over is None:
            self._note_turn(observation.call, False)
            if is_news:
                self._is_turn_over = False
                yield from self._ask_model(at)

    def _note_turn(self, prompt: str, is_over: bool) -> None:
        if not prompt:
            return
        while len(self._turns) >= MAX_TURNS:
            del self._turns[next(iter(self._turns))]
        self._turns[prompt] = is_over

    def _model(self, observation: Observation, at: int, is_news: bool) -> Iterator[Change]:
        if not observation.end:
            if is_news:
                yield from self._ask_model(at)
                self._model_asked_at = at
            return
        call, is_new = self._calls.note(observation, Kind.LLM)
        cost = observation.data.get("cost_usd")
        if not is_new:
            if cost is not None and not call.has_cost:
                # The source that told of the call first does not say what it cost.
                call.has_cost = True
                data = {"cost_usd": cost, "amends": True, "priced_tokens": call.unpriced_tokens}
                yield Change(EventType.LLM_CALL_COMPLETED, call.end, data)
            return
        call.has_cost = cost is not None
        call.unpriced_tokens = 0 if call.has_cost else _tokens_of(observation.data)
        self._calls.end(call, observation.end)
        failure = _failure_of(observation)
        if observation.end >= self._answered_at:
            self._failure, self._answered_at = failure, observation.end
        step = failure | {key: observation.data[key] for key in ("duration",) if key in observation.data}
        yield Change(EventType.LLM_CALL_COMPLETED, observation.end, observation.data)
        if observation.is_step:
            # A turn of the model is a step; its tool calls come after it.
            yield Change(EventType.STEP_COMPLETED, observation.end, step | {"is_model_turn": True})
            self.run.last_llm = str(observation.end)
        if observation.end >= self._model_asked_at:
            self._is_model_pending = False
        elif self._is_model_pending:
            # Told late, of a call before the one that goes on.
            yield Change(EventType.LLM_CALL_STARTED, self._model_asked_at, {})
        if is_news and observation.requested_tools is not None:
            yield from self._answer(observation, observation.requested_tools)

    def _answer(self, observation: Observation, tools: tuple[str, ...]) -> Iterator[Change]:
        """Begin the tools that an answer of the model calls; one that calls none ends the turn."""
        if not tools:
            yield Change(
                EventType.WORKER_WAITING, observation.end, {"reason": WaitingReason.USER_INPUT.value}
            )
        for index, tool in enumerate(tools):
            begun = replace(
                observation, kind=Kind.TOOL, start=observation.end + index, end=0, data={"tool": tool}
            )
            yield from self._tool(begun, begun.start, True)

    def _tool(self, observation: Observation, at: int, is_news: bool) -> Iterator[Change]:
        if observation.continuation and observation.end:
            begun = self._continued.pop(observation.continuation, None)
            if not isinstance(begun, Call):
                self._continue(observation.continuation, observation)
                return
            known = {"tool": begun.tool} | ({"args_hash": begun.arguments} if begun.arguments else {})
            observation = replace(observation, call=begun.id, continuation="", data=observation.data | known)
        call, is_new = self._calls.note(observation, Kind.TOOL)
        if observation.continuation:
            ended = self._continued.pop(observation.continuation, None)
            self._continue(observation.continuation, call)
            if isinstance(ended, Observation):
                if is_new:
                    yield Change(
                        EventType.TOOL_CALL_STARTED,
                        observation.start,
                        observation.data | {"call_id": call.id},
                    )
                yield from self._tool(ended, ended.end, is_news)
                return
        if call.end:
            yield from self._amend(call, observation)
            return
        if not is_new:
            # It began before its client asked: the client decided, or the tool ended.
            is_decision = observation.source != "hook"
            answered = self._find_answered_requests(call, at, is_decision=is_decision, is_news=is_news)
            yield from self._end_wait(answered, at)
        # The begin of a call without an id of its own was told to an earlier service: its end closes any of
        # the same tool.
        is_begin_unknown = is_new and is_news and not observation.call and observation.end > 0
        data = observation.data | {"call_id": "" if is_begin_unknown else call.id}
        if not observation.end:
            if is_new:
                self._is_model_pending = False
                self._is_turn_over = self._is_turn_over and observation.is_subagent
                data.pop("args_hash", None)
                data.pop("effect", None)
                yield Change(EventType.TOOL_CALL_STARTED, observation.start, data)
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
        yield Change(EventType.TOOL_CALL_COMPLETED, observation.end, data)
        if is_news and not self._calls.is_open(Kind.TOOL):
            if self._is_turn_over and (observation.is_subagent or call.is_subagent):
                # Whether it asks its model again or has ended is not known; its parent waits for a prompt.
                yield Change(EventType.WORKER_WAITING, at, {"reason": WaitingReason.USER_INPUT.value})
            else:
                yield from self._ask_model(at)

    def _continue(self, continuation: str, observation: Call | Observation) -> None:
        while len(self._continued) >= MAX_CONTINUED:
            del self._continued[next(iter(self._continued))]
        self._continued[continuation] = observation

    def _amend(self, call: Call, observation: Observation) -> Iterator[Change]:
        """Tell that a call has failed, where the source that told its end did not know."""
        failure = _failure_of(observation)
        if not observation.end or not failure or call.has_failed:
            return
        call.has_failed = True
        data = {"tool": call.tool, "call_id": call.id, "outcome": ToolOutcome.ERROR.value, "amends": True}
        yield Change(EventType.TOOL_CALL_COMPLETED, call.end, data | failure)

    def _ask_model(self, at: int) -> Iterator[Change]:
        if not self._is_model_pending:
            self._is_model_pending, self._model_asked_at = True, at
            self._requests.clear()
            yield Change(EventType.LLM_CALL_STARTED, at, {})

    def _end(self, at: int) -> Iterator[Change]:
        if not self.run.open:
            return
        self.run.open, self.run.ended_at = False, at
        self._last = max(self._last, at)
        yield self._ended()

    def _ended(self) -> Change:
        """Return how the session ended, as far as is known."""
        self.run.has_failed = bool(self._failure)
        kind = EventType.EXECUTION_FAILED if self._failure else EventType.EXECUTION_COMPLETED
        return Change(kind, self.run.ended_at, self._failure)


def _tokens_of(data: Mapping[str, Any]) -> int:
    return (data.get("input_tokens") or 0) + (data.get("output_tokens") or 0)


def _failure_of(observation: Observation) -> dict[str, Any]:
    return {key: observation.data[key] for key in _FAILURE if key in observation.data}


class Sessions:
    """Sessions by client and id, the least recently seen forgotten first."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], Session] = {}

    def get(self, client: str, session: str) -> Session:
        """Return a session; one that is new has no name until its first record gives it one."""
        key = (client, session)
        known = self._sessions.pop(key, None)
        return self._keep(key, known or Session(Run("", session, session)))

    def reset(self, client: str, session: str, agent: str, *, ended_at: int | None, has_failed: bool) -> None:
        """
        Forget what is known of a session, but for what its agent is called and how it ended.

        Args:
            client: The coding agent.
            session: Its id for the session.
            agent: What the agent is called; "" if nothing was told of it.
            ended_at: When the session ended, in nanoseconds since the epoch; None if it goes on.
            has_failed: Whether it ended in a failure.
        """
        run = Run(agent, session, session, open=ended_at is None, ended_at=ended_at or 0)
        run.has_failed = has_failed
        self._keep((client, session), Session(run))

    def restore(self, event: AgentEvent) -> None:
        """Take in what a known session was told to have called before the service was started anew."""
        session = self._sessions.get((event.agent_id.partition("/")[0], event.session_id))
        if session is not None:
            session.restore(event)

    def _keep(self, key: tuple[str, str], session: Session) -> Session:
        while len(self._sessions) >= MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[key] = session
        return session
