"""
The reporter: says what a node does, to everybody at once.

Spans, metrics and the step log are made by instrumentation's blocks; the same facts go onto the event bus,
read from those blocks, so that whoever follows the one knows what who follows the other knows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from queenright.instrumentation.names import CUT_OFF, Verdict, WaitingReason
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.step import LlmCall, Step, ToolCall
from queenright.instrumentation.worker import Worker
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, Clock, EventType

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """
    Whose work it is: what every event of an execution carries.

    Graphs of the service itself have no ``agent_id``: nobody watches them as workers.
    """

    agent_id: str = ""
    session_id: str = ""
    incarnation_id: str = ""
    graph_id: str = ""
    stream_id: str = ""
    execution_id: str = ""


class Reporter:
    """
    Reports the work of one execution.

    Nothing here raises, but for the cancellation of who waits: what a node says of itself is not worth
    the run.

    Args:
        bus: Where the events go.
        worker: Where spans, metrics and the step log go.
        origin: What every event carries.
        clock: Times of events.
    """

    def __init__(self, *, bus: EventBus, worker: Worker, origin: Origin, clock: Clock) -> None:
        self.origin = origin
        self.worker = worker
        self._bus = bus
        self._clock = clock

    async def emit(
        self,
        type: EventType,  # noqa: A002  # the event's own word
        data: Mapping[str, Any],
        *,
        node_id: str = "",
        trace_id: str = "",
        span_id: str = "",
        time: float | None = None,
    ) -> None:
        """Publish an event of this execution; ``time`` is now if it is not given."""
        event = self.event(type, data, node_id=node_id, time=time)
        event.trace_id, event.span_id = trace_id, span_id
        try:
            await self._bus.publish(event)
        except Exception:
            _log.exception("the event %s of node %r was not published", type.value, node_id)

    def whisper(self, type: EventType, data: Mapping[str, Any], *, node_id: str) -> None:  # noqa: A002
        """Hand an event to who listens now, without keeping it: pieces of text."""
        try:
            self._bus.fan_out(self.event(type, data, node_id=node_id))
        except Exception:
            _log.exception("the event %s of node %r was not handed out", type.value, node_id)

    def event(
        self,
        type: EventType,  # noqa: A002
        data: Mapping[str, Any],
        *,
        node_id: str,
        time: float | None = None,
    ) -> AgentEvent:
        """Return an event of this execution, unpublished."""
        origin = self.origin
        return AgentEvent(
            type=type,
            time=self._clock() if time is None else time,
            agent_id=origin.agent_id,
            session_id=origin.session_id,
            incarnation_id=origin.incarnation_id,
            graph_id=origin.graph_id,
            stream_id=origin.stream_id,
            node_id=node_id,
            execution_id=origin.execution_id,
            data=data,
        )

    def step(self, node_id: str, index: int | None = None) -> StepReport:
        """
        Return a block around one step of a node.

        Its number is the worker's own count of steps, as in the span and the step log; ``index`` stands
        in where that is unknown.
        """
        return StepReport(self, node_id, index)

    @asynccontextmanager
    async def waiting(self, reason: WaitingReason, *, node_id: str, **data: Any) -> AsyncIterator[None]:
        """Say that the worker is rightly idle while the block runs; ``data`` is said with the begin."""
        with self.worker.waiting(reason):
            try:
                await self.emit(EventType.WORKER_WAITING, {"reason": reason.value, **data}, node_id=node_id)
                yield
            finally:
                await self.emit(EventType.WORKER_WAITING, {"reason": None}, node_id=node_id)

    async def checkpoint(self, checkpoint_id: str, *, node_id: str = "") -> None:
        """Say that the state was saved, which is progress."""
        self.worker.checkpoint(checkpoint_id)
        await self.emit(EventType.CHECKPOINT_SAVED, {"checkpoint_id": checkpoint_id}, node_id=node_id)


class _Report:
    """
    A block of instrumentation with an event at either end.

    Left by a cancellation, a step or a call of a model did not fail: somebody ended it from outside.
    """

    def __init__(self, reporter: Reporter, node_id: str, block: Step | LlmCall | ToolCall) -> None:
        self._reporter = reporter
        self._node_id = node_id
        self._block = block

    def _starts(self) -> tuple[EventType, dict[str, Any]]:
        raise NotImplementedError

    def _ends(self) -> tuple[EventType, dict[str, Any]]:
        raise NotImplementedError

    @property
    def facts(self) -> dict[str, Any]:
        """What the event of the end said, once the block is left."""
        return {key: value for key, value in self._ends()[1].items() if value is not None}

    @property
    def ended_at(self) -> float:
        """When the block was left, in seconds since the epoch."""
        return self._block.ended_at

    async def __aenter__(self) -> Self:
        block = self._block
        block.__enter__()
        try:
            await self._say(*self._starts(), block.started_at)
        except BaseException as error:
            self._leave(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(error)
        duration = max(0.0, self.ended_at - self._block.started_at)
        await self._say(self._ends()[0], {**self.facts, "duration": duration}, self.ended_at)

    def _leave(self, error: BaseException | None) -> None:
        if isinstance(error, asyncio.CancelledError) and not isinstance(self._block, ToolCall):
            error = None
        self._block.__exit__(type(error) if error else None, error, None)

    async def _say(self, type_: EventType, data: Mapping[str, Any], at: float) -> None:
        block = self._block
        await self._reporter.emit(
            type_,
            data,
            node_id=self._node_id,
            trace_id=block.trace_id,
            span_id=block.span_id,
            time=at or None,
        )


class StepReport(_Report):
    """One step of a node; made by ``Reporter.step``."""

    _block: Step

    def __init__(self, reporter: Reporter, node_id: str, index: int | None) -> None:
        super().__init__(reporter, node_id, reporter.worker.step(node_id))
        self._index = index
        self._verdict: Verdict | None = None
        self._text = ""

    @property
    def index(self) -> int | None:
        """The number of the step in this life of the worker."""
        return self._block.index if self._block.index >= 0 else self._index

    def verdict(self, verdict: Verdict, feedback: str = "", text: str = "") -> None:
        """Say how the step was judged, with what was said to the model, and what the model had said."""
        self._verdict = verdict
        self._text = feedback or text
        self._block.verdict(verdict, feedback or None)

    def llm(self, model: str, *, client_facing: bool = False) -> LlmReport:
        """Return a block around one call of a model; is its text for a client to see?"""
        return LlmReport(self._reporter, self._node_id, self._block.llm(model), client_facing)

    def tool(
        self,
        name: str,
        arguments: str = "",
        call_id: str = "",
        timeout: float | None = None,
        effect: str = "",
    ) -> ToolReport:
        """Return a block around one call of a tool; see ``Step.tool``."""
        block = self._block.tool(name, arguments, timeout=timeout, call_id=call_id, effect=effect)
        # As whoever reads the step log tells the calls of one turn.
        turn = f"{self._node_id}:{self.index}"
        return ToolReport(self._reporter, self._node_id, block, call_id, timeout, turn)

    def _starts(self) -> tuple[EventType, dict[str, Any]]:
        return EventType.STEP_STARTED, {"index": self.index}

    def _ends(self) -> tuple[EventType, dict[str, Any]]:
        return EventType.STEP_COMPLETED, {
            "index": self.index,
            "verdict": self._verdict.value if self._verdict is not None else None,
            "error_type": self._block.error_type,
            "error": self._block.error_text,
            "text": redact(self._text) or None,
        }


class LlmReport(_Report):
    """One call of a model; made by ``StepReport.llm``."""

    _block: LlmCall

    def __init__(self, reporter: Reporter, node_id: str, block: LlmCall, client_facing: bool) -> None:
        super().__init__(reporter, node_id, block)
        self._delta_type = EventType.CLIENT_OUTPUT_DELTA if client_facing else EventType.LLM_TEXT_DELTA
        self._tokens: tuple[int, int] | None = None
        self._cost: float | None = None
        self._truncated: bool | None = None
        self._handed_out = False

    def usage(self, input_tokens: int, output_tokens: int, cost: float) -> None:
        """Say how many tokens the call used, and what it cost in dollars: 0 if no price is known."""
        self._cost = cost or None
        self._tokens = (input_tokens, output_tokens)
        self._block.usage(input_tokens, output_tokens)

    def finished(self, reason: str) -> None:
        """Say why the model stopped, in its provider's words."""
        if reason:
            self._block.finished(reason)
            self._truncated = True if reason in CUT_OFF else None

    def whole(self, text: str) -> None:
        """Hand out a whole answer, if none of it has come in pieces: not every provider streams."""
        if text and not self._handed_out:
            self.delta(text)

    def delta(self, text: str) -> None:
        """Say that a piece of the answer arrived."""
        self._handed_out = True
        self._block.delta()
        self._reporter.whisper(self._delta_type, {"text": text}, node_id=self._node_id)

    def _starts(self) -> tuple[EventType, dict[str, Any]]:
        return EventType.LLM_CALL_STARTED, {"model": self._block.model}

    def _ends(self) -> tuple[EventType, dict[str, Any]]:
        read, written = self._tokens or (None, None)
        return EventType.LLM_CALL_COMPLETED, {
            "model": self._block.model,
            "input_tokens": read,
            "output_tokens": written,
            "cost_usd": self._cost,
            "truncated": self._truncated,
            "error_type": self._block.error_type,
            "error": self._block.error_text,
        }


class ToolReport(_Report):
    """One call of a tool; made by ``StepReport.tool``."""

    _block: ToolCall

    def __init__(
        self,
        reporter: Reporter,
        node_id: str,
        block: ToolCall,
        call_id: str,
        timeout: float | None,
        turn: str,
    ) -> None:
        super().__init__(reporter, node_id, block)
        self._call_id = call_id
        self._timeout = timeout
        self._turn = turn

    def result(self, answer: str) -> None:
        """Say what the tool answered; only the fingerprint is told on."""
        self._block.result(answer)

    def error(self, error: BaseException) -> None:
        """Say that the tool failed."""
        self._block.error(error)

    def _starts(self) -> tuple[EventType, dict[str, Any]]:
        data: dict[str, Any] = {"tool": self._block.tool, "call_id": self._call_id}
        if self._timeout is not None:
            data["timeout"] = self._timeout
        return EventType.TOOL_CALL_STARTED, data

    def _ends(self) -> tuple[EventType, dict[str, Any]]:
        block = self._block
        return EventType.TOOL_CALL_COMPLETED, {
            "tool": block.tool,
            "call_id": self._call_id,
            "turn": self._turn,
            "args_hash": block.arguments_hash or None,
            "result_hash": block.result_hash or None,
            "effect": block.effect or None,
            "outcome": block.outcome.value,
            "error_type": block.error_type,
            "error": block.error_text,
        }
