"""
The reporter: reports what a node does as spans, metrics, step log entries and events.

Instrumentation's context managers produce spans, metrics and the step log; the events are read from the same
objects, so that all of them agree.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from queenright.instrumentation.names import CUT_OFF, WaitingReason
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.step import LlmCall, Step, ToolCall
from queenright.instrumentation.verdict import Verdict
from queenright.instrumentation.worker import Worker
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, Clock, EventType

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """
    The ids of an execution, which all its events carry.

    Graphs of the service itself have no ``agent_id``: they are not monitored as workers.
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

    Nothing here raises, except when the caller is cancelled: a failed report must not fail the run.

    Args:
        origin: Ids that every event carries.
    """

    def __init__(self, *, bus: EventBus, worker: Worker, origin: Origin, clock: Clock) -> None:
        self.origin = origin
        self._ids = asdict(origin)
        self.worker = worker
        self._bus = bus
        self._clock = clock

    async def emit(
        self,
        type: EventType,  # noqa: A002 - the event's own field name
        data: Mapping[str, Any],
        *,
        node_id: str = "",
        trace_id: str = "",
        span_id: str = "",
        time: float | None = None,
    ) -> None:
        """Publish an event of this execution; ``time`` defaults to now."""
        event = self.event(type, data, node_id=node_id, time=time)
        event.trace_id, event.span_id = trace_id, span_id
        try:
            await self._bus.publish(event)
        except Exception:
            _log.exception("could not publish event %s of node %r", type.value, node_id)

    def emit_transient(self, type: EventType, data: Mapping[str, Any], *, node_id: str) -> None:  # noqa: A002
        """Deliver an event to current subscribers without storing it, for pieces of text."""
        try:
            self._bus.fan_out(self.event(type, data, node_id=node_id))
        except Exception:
            _log.exception("could not deliver event %s of node %r", type.value, node_id)

    def event(
        self,
        type: EventType,  # noqa: A002
        data: Mapping[str, Any],
        *,
        node_id: str,
        time: float | None = None,
    ) -> AgentEvent:
        """Create an event of this execution without publishing it."""
        at = self._clock() if time is None else time
        return AgentEvent(type=type, time=at, node_id=node_id, data=data, **self._ids)

    def step(self, node_id: str, index: int | None = None) -> StepReport:
        """
        Return a context manager for one step of a node.

        The step's number is the worker's own count, as in the span and the step log; ``index`` is used if
        that is unknown.
        """
        return StepReport(self, node_id, index)

    @asynccontextmanager
    async def waiting(self, reason: WaitingReason, *, node_id: str, **data: Any) -> AsyncIterator[None]:
        """Report the worker as waiting while the block runs; ``data`` is added to the first event."""
        with self.worker.waiting(reason):
            try:
                await self.emit(EventType.WORKER_WAITING, {"reason": reason.value, **data}, node_id=node_id)
                yield
            finally:
                await self.emit(EventType.WORKER_WAITING, {"reason": None}, node_id=node_id)

    async def checkpoint(self, checkpoint_id: str, *, node_id: str = "") -> None:
        """Report a saved checkpoint, which counts as progress."""
        self.worker.checkpoint(checkpoint_id)
        await self.emit(EventType.CHECKPOINT_SAVED, {"checkpoint_id": checkpoint_id}, node_id=node_id)


class _Report:
    """
    An instrumentation block with an event at its start and end.

    A cancellation does not make a step or a model call a failure: it was ended from outside.
    """

    def __init__(self, reporter: Reporter, node_id: str, block: Step | LlmCall | ToolCall) -> None:
        self._reporter = reporter
        self._node_id = node_id
        self._block = block

    def _start_event(self) -> tuple[EventType, dict[str, Any]]:
        raise NotImplementedError

    def _end_event(self) -> tuple[EventType, dict[str, Any]]:
        raise NotImplementedError

    @property
    def facts(self) -> dict[str, Any]:
        """The data of the end event, once the block has ended."""
        return {key: value for key, value in self._end_event()[1].items() if value is not None}

    @property
    def ended_at(self) -> float:
        """When the block ended, in seconds since the epoch."""
        return self._block.ended_at

    async def __aenter__(self) -> Self:
        block = self._block
        block.__enter__()
        try:
            await self._emit(*self._start_event(), block.started_at)
        except BaseException as error:
            self._exit_block(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exit_block(error)
        duration = max(0.0, self.ended_at - self._block.started_at)
        await self._emit(self._end_event()[0], {**self.facts, "duration": duration}, self.ended_at)

    def _exit_block(self, error: BaseException | None) -> None:
        if isinstance(error, asyncio.CancelledError) and not isinstance(self._block, ToolCall):
            error = None
        self._block.__exit__(type(error) if error else None, error, None)

    async def _emit(self, type_: EventType, data: Mapping[str, Any], at: float) -> None:
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
    """One step of a node; created by ``Reporter.step``."""

    _block: Step

    def __init__(self, reporter: Reporter, node_id: str, index: int | None) -> None:
        super().__init__(reporter, node_id, reporter.worker.step(node_id))
        self._index = index
        self._verdict: Verdict | None = None
        self._text = ""

    @property
    def index(self) -> int | None:
        """Number of the step in this incarnation of the worker."""
        return self._block.index if self._block.index >= 0 else self._index

    def verdict(self, verdict: Verdict, feedback: str = "", text: str = "") -> None:
        """Set the verdict, its feedback and the model's text."""
        self._verdict = verdict
        self._text = feedback or text
        self._block.verdict(verdict, feedback or None)

    def llm(self, model: str, *, client_facing: bool = False) -> LlmReport:
        """Return a context manager for one model call; ``client_facing`` text is emitted for clients."""
        return LlmReport(self._reporter, self._node_id, self._block.llm(model), client_facing)

    def tool(
        self,
        name: str,
        arguments: str = "",
        call_id: str = "",
        timeout: float | None = None,
        effect: str = "",
    ) -> ToolReport:
        """Return a context manager for one tool call; see ``Step.tool``."""
        block = self._block.tool(name, arguments, timeout=timeout, call_id=call_id, effect=effect)
        # The same turn id as in the step log.
        turn = f"{self._node_id}:{self.index}"
        return ToolReport(self._reporter, self._node_id, block, call_id, timeout, turn)

    def _start_event(self) -> tuple[EventType, dict[str, Any]]:
        return EventType.STEP_STARTED, {"index": self.index}

    def _end_event(self) -> tuple[EventType, dict[str, Any]]:
        return EventType.STEP_COMPLETED, {
            "index": self.index,
            "verdict": self._verdict.value if self._verdict is not None else None,
            "error_type": self._block.error_type,
            "error": self._block.error_text,
            "text": redact(self._text) or None,
        }


class LlmReport(_Report):
    """One model call; created by ``StepReport.llm``."""

    _block: LlmCall

    def __init__(self, reporter: Reporter, node_id: str, block: LlmCall, client_facing: bool) -> None:
        super().__init__(reporter, node_id, block)
        self._delta_type = EventType.CLIENT_OUTPUT_DELTA if client_facing else EventType.LLM_TEXT_DELTA
        self._tokens: tuple[int, int] | None = None
        self._cost: float | None = None
        self._is_truncated: bool | None = None
        self._has_emitted_text = False

    def usage(self, input_tokens: int, output_tokens: int, cost: float) -> None:
        """Set the token usage, and the cost in dollars (0 if the price is unknown)."""
        self._cost = cost or None
        self._tokens = (input_tokens, output_tokens)
        self._block.usage(input_tokens, output_tokens)

    def set_finish_reason(self, reason: str) -> None:
        """Set the provider's finish reason."""
        if reason:
            self._block.finished(reason)
            self._is_truncated = True if reason in CUT_OFF else None

    def ensure_text(self, text: str) -> None:
        """Emit the whole text, if no piece of it was emitted: not every provider streams."""
        if text and not self._has_emitted_text:
            self.delta(text)

    def delta(self, text: str) -> None:
        """Emit a piece of the text."""
        self._has_emitted_text = True
        self._block.delta()
        self._reporter.emit_transient(self._delta_type, {"text": text}, node_id=self._node_id)

    def _start_event(self) -> tuple[EventType, dict[str, Any]]:
        return EventType.LLM_CALL_STARTED, {"model": self._block.model}

    def _end_event(self) -> tuple[EventType, dict[str, Any]]:
        input_tokens, output_tokens = self._tokens or (None, None)
        return EventType.LLM_CALL_COMPLETED, {
            "model": self._block.model,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "cost_usd": self._cost,
            "truncated": self._is_truncated,
            "error_type": self._block.error_type,
            "error": self._block.error_text,
        }


class ToolReport(_Report):
    """One tool call; created by ``StepReport.tool``."""

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
        """Set the tool's answer; only its hash is reported."""
        self._block.result(answer)

    def error(self, error: BaseException) -> None:
        """Set the tool's error."""
        self._block.error(error)

    def _start_event(self) -> tuple[EventType, dict[str, Any]]:
        data: dict[str, Any] = {"tool": self._block.tool, "call_id": self._call_id}
        if self._timeout is not None:
            data["timeout"] = self._timeout
        return EventType.TOOL_CALL_STARTED, data

    def _end_event(self) -> tuple[EventType, dict[str, Any]]:
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
