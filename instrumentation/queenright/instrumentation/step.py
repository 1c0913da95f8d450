"""Context managers for steps and for the model and tool calls within them."""

from __future__ import annotations

from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from opentelemetry.context import Context, attach
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, set_span_in_context

from queenright.instrumentation import names
from queenright.instrumentation.effect import Effect
from queenright.instrumentation.effects import get_effect_facts
from queenright.instrumentation.error_guard import report_error, suppress_errors
from queenright.instrumentation.fingerprint import arguments_fingerprint, result_fingerprint
from queenright.instrumentation.names import Operation, Phase, ToolOutcome
from queenright.instrumentation.redaction import mask_name, redact
from queenright.instrumentation.run import Run, is_failure, make_step_line, to_nanoseconds
from queenright.instrumentation.steplog import format_iso
from queenright.instrumentation.verdict import Verdict

T = TypeVar("T")

_CONTENT_LIMIT: Final = 8_192
_EFFECTS: Final = frozenset(effect.value for effect in Effect)
_DELTA_SECONDS: Final = 5.0

_current_step: ContextVar[Step | None] = ContextVar("queenright_step", default=None)


def current_step() -> Step | None:
    """Return the open step of the calling task or thread."""
    return _current_step.get()


def _clean_name(value: object) -> str:
    """Convert any value to a name that is valid as a label and in OTLP, with secrets masked."""
    if type(value) is str and value.isascii():
        return mask_name(value)
    try:
        return mask_name(str(value).encode("utf-8", "replace").decode("utf-8"))
    except Exception:
        return "?"


class _SpanBlock:
    """
    A span that is open while its ``with`` or ``async with`` block runs.

    An exception that leaves the block is recorded and propagates unchanged. Queenright raises none itself.

    Attributes:
        started_at: Start time, in seconds since the epoch.
        ended_at: End time, set when the block ends.
        error_type: Class of the exception, None if nothing failed.
        error_text: Redacted text of the exception, None if nothing failed.
    """

    __slots__ = (
        "_attributes",
        "_context",
        "_context_token",
        "_run",
        "_span",
        "ended_at",
        "error_text",
        "error_type",
        "started_at",
    )

    def __init__(self, run: Run) -> None:
        self._run = run
        self._span: Span = INVALID_SPAN
        self._context: Context | None = None
        self._context_token: Token[Context] | None = None
        self._attributes: dict[str, str | int | float | bool] = {}
        self.started_at = self.ended_at = 0.0
        self.error_type: str | None = None
        self.error_text: str | None = None

    @property
    def trace_id(self) -> str:
        """The trace id in hexadecimal; empty if spans are not recorded."""
        context = self._span.get_span_context()
        return f"{context.trace_id:032x}" if context.is_valid else ""

    @property
    def span_id(self) -> str:
        """The span id in hexadecimal; empty if spans are not recorded."""
        return _format_span_id(self._span)

    def _begin(self, now: float) -> None:
        raise NotImplementedError

    def _end(self, now: float, error: BaseException | None) -> None:
        raise NotImplementedError

    def _open(self, name: str, kind: SpanKind, parent: Context | None, now: float) -> None:
        self.started_at = now
        span = self._span = self._run.tracer.start_span(
            name, parent, kind, self._attributes, start_time=to_nanoseconds(now)
        )
        # Attached, so that spans of other instrumented libraries in this block become children.
        self._context = set_span_in_context(span)
        self._context_token = attach(self._context)

    def __enter__(self) -> Self:
        # `suppress_errors`, inlined: this is the hot path of every step.
        try:
            self._run.touch()
            self._begin(self._run.clock())
        except Exception as error:
            report_error(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.ended_at = now = self._run.clock()
            self._end(now, error if is_failure(error) else None)
        except Exception as internal_error:
            report_error(internal_error)
            with suppress_errors:
                if self._span.is_recording():
                    self._span.end()
        if (token := self._context_token) is not None:
            self._context_token = None
            # Not `detach`, which logs an error if a block exits in a different task than it was entered in.
            try:
                token.var.reset(token)
            except (AttributeError, ValueError):
                return

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


class Step(_SpanBlock):
    """One unit of a worker's work. It ends with a verdict or an error."""

    __slots__ = ("_calls", "_feedback", "_token", "_tokens", "_verdict", "index", "node")

    def __init__(self, run: Run, node: str) -> None:
        super().__init__(run)
        self.node = _clean_name(node)
        self.index = -1
        self._verdict: Verdict | None = None
        self._feedback: str | None = None
        self._calls: list[dict[str, Any]] = []
        self._tokens = [0, 0]
        self._token: Token[Step | None] | None = None

    def tool(
        self,
        name: str,
        arguments: object = None,
        *,
        timeout: float | None = None,
        call_id: str = "",
        effect: str = "",
    ) -> ToolCall:
        """
        Return a context manager for one tool call.

        Args:
            name: The tool's name.
            arguments: The arguments of the call; by default only their fingerprint leaves the process.
            timeout: The call's time limit in seconds, if any; within it the call is not a stall.
            call_id: The id that the model assigned to the call.
            effect: ``reads``, ``changes``, ``waits`` or ``submits``, if the tool declares it; by default
                it is inferred from the name and the arguments.
        """
        return ToolCall(self, name, arguments, timeout, call_id, effect)

    def llm(self, model: str, provider: str = "") -> LlmCall:
        """Return a context manager for one model call."""
        return LlmCall(self, model, provider)

    def verdict(self, verdict: Verdict | str, feedback: str | None = None) -> None:
        """Set the verdict on the step: ACCEPT, RETRY, CONTINUE or ESCALATE. The last call wins."""
        self._feedback = feedback
        with suppress_errors:
            self._verdict = Verdict(str(verdict).upper())

    def _begin(self, now: float) -> None:
        run = self._run
        self.index = next(run.indexes)
        run.enter_node(self.node)
        self._attributes = {**run.attributes, names.NODE_ID: self.node, names.STEP_INDEX: self.index}
        self._open(f"step {self.node}", SpanKind.INTERNAL, run.context, now)
        self._token = _current_step.set(self)
        run.record_activity(now)
        run.emit(names.EVENT_STEP_STARTED, now, self._span, self._attributes)

    def _end(self, now: float, error: BaseException | None) -> None:
        run, span = self._run, self._span
        label = self._verdict.value.lower() if self._verdict else "continue"
        if self._verdict is not None:
            span.set_attribute(names.STEP_VERDICT, self._verdict.value)
        feedback = redact(str(self._feedback)) if self._feedback and run.captures else None
        if feedback is not None:
            span.set_attribute(names.STEP_FEEDBACK, feedback)
        if error is not None:
            self.error_type, self.error_text = run.fail(span, error)
            label = "error"
        span.end(to_nanoseconds(now))
        run.record_activity(now)
        run.series.count_step(self.node, label, max(0.0, now - self.started_at), run.exemplar)
        run.record_verdict(label, now)
        if run.log is not None:
            run.log.append(
                make_step_line(
                    run,
                    node_id=self.node,
                    step_index=self.index,
                    verdict=self._verdict.value if self._verdict else None,
                    feedback=feedback,
                    error_type=self.error_type,
                    error=self.error_text,
                    tool_calls=self._calls,
                    input_tokens=self._tokens[0],
                    output_tokens=self._tokens[1],
                    started_at=format_iso(self.started_at),
                    ended_at=format_iso(now),
                    trace_id=run.trace_id,
                    span_id=_format_span_id(span),
                )
            )
        if self._token is not None:
            _current_step.reset(self._token)


class ToolCall(_SpanBlock):
    """
    One tool call.

    Attributes:
        arguments_hash: Fingerprint of the arguments, set at the start.
        result_hash: Fingerprint of the result, set at the end; empty if ``result`` was not called.
        outcome: ok, error or timeout, set at the end.
    """

    __slots__ = (
        "_arguments",
        "_call_id",
        "_failure",
        "_step",
        "_timeout",
        "arguments_hash",
        "effect",
        "outcome",
        "result_hash",
        "tool",
    )

    def __init__(
        self, step: Step, tool: str, arguments: object, timeout: float | None, call_id: str, effect: str = ""
    ) -> None:
        super().__init__(step._run)
        self.tool = _clean_name(tool)
        self._step = step
        self._arguments = arguments
        self._timeout: float | None = None
        with suppress_errors:
            self._timeout = float(timeout) if timeout is not None else None
        self._call_id = _clean_name(call_id)
        self.arguments_hash = ""
        self.effect = effect if effect in _EFFECTS else ""
        self.result_hash = ""
        self.outcome = ToolOutcome.OK
        self._failure: BaseException | None = None

    def result(self, value: T) -> T:
        """Record the tool's result and return it; by default only its fingerprint leaves the process."""
        with suppress_errors:
            self.result_hash = result_fingerprint(value, self._arguments)
            if self._run.captures:
                self._span.set_attribute(names.GEN_AI_TOOL_CALL_RESULT, redact(str(value), _CONTENT_LIMIT))
        return value

    def error(self, error: BaseException | str) -> None:
        """Record that the tool failed, if its exception does not leave the block."""
        self._failure = error if isinstance(error, BaseException) else ToolFailedError(error)

    def _begin(self, now: float) -> None:
        run, step = self._run, self._step
        self.arguments_hash = arguments_fingerprint(self._arguments)
        self.effect = self.effect or get_effect_facts(self.tool, self._arguments).get("effect", "")
        attributes = self._attributes = {
            **step._attributes,
            names.GEN_AI_OPERATION_NAME: Operation.EXECUTE_TOOL.value,
            names.GEN_AI_TOOL_NAME: self.tool,
            names.TOOL_ARGUMENTS_HASH: self.arguments_hash,
        }
        if self.effect:
            attributes[names.TOOL_EFFECT] = self.effect
        if self._timeout is not None:
            attributes[names.TOOL_TIMEOUT] = self._timeout
        if self._call_id:
            attributes[names.GEN_AI_TOOL_CALL_ID] = self._call_id
        if run.captures:
            attributes[names.GEN_AI_TOOL_CALL_ARGUMENTS] = redact(str(self._arguments), _CONTENT_LIMIT)
        self._open(f"execute_tool {self.tool}", SpanKind.INTERNAL, step._context, now)
        run.open_call(self, Phase.TOOL, self._timeout)
        run.last_tool_call = now
        run.record_activity(now)
        run.emit(names.EVENT_TOOL_STARTED, now, self._span, attributes)

    def _end(self, now: float, error: BaseException | None) -> None:
        run, span = self._run, self._span
        run.close_call(self)
        failure, self._failure = error or self._failure, None
        if failure is not None:
            error_type, error_text = self.error_type, self.error_text = run.fail(span, failure)
            self.outcome = ToolOutcome.TIMEOUT if _is_timeout(failure) else ToolOutcome.ERROR
            # A repeated failure is a repeated result.
            text = f"{error_type}: {error_text}"
            self.result_hash = self.result_hash or result_fingerprint(text, self._arguments, has_failed=True)
        self._arguments = None
        if self.result_hash:
            span.set_attribute(names.TOOL_RESULT_HASH, self.result_hash)
        span.end(to_nanoseconds(now))
        run.record_activity(now)
        seconds = max(0.0, now - self.started_at)
        run.series.count_tool_call(self.tool, self.outcome.value, seconds, run.exemplar)
        if self.result_hash and failure is None:
            run.record_result(self.result_hash, now)
        if run.log is not None:
            self._step._calls.append(
                {
                    "tool_name": self.tool,
                    "call_id": self._call_id,
                    "args_hash": self.arguments_hash,
                    "result_hash": self.result_hash,
                    "effect": self.effect,
                    "outcome": self.outcome.value,
                    "error_type": self.error_type,
                    "error": self.error_text,
                    "started_at": format_iso(self.started_at),
                    "ended_at": format_iso(now),
                    "span_id": _format_span_id(span),
                }
            )


class LlmCall(_SpanBlock):
    """One model call."""

    __slots__ = ("_delta_at", "_failure", "_provider", "_step", "_tokens", "model")

    def __init__(self, step: Step, model: str, provider: str) -> None:
        super().__init__(step._run)
        self.model = _clean_name(model)
        self._step = step
        self._provider = _clean_name(provider)
        self._tokens: tuple[int, int] | None = None
        self._failure: BaseException | None = None
        self._delta_at = 0.0

    def usage(self, input_tokens: int, output_tokens: int) -> None:
        """Record the tokens that the call used."""
        with suppress_errors:
            self._tokens = (max(0, int(input_tokens or 0)), max(0, int(output_tokens or 0)))

    def delta(self) -> None:
        """Record that a chunk of a streamed response arrived. Cheap enough to call for every token."""
        with suppress_errors:
            now = self._run.clock()
            if now - self._delta_at >= _DELTA_SECONDS or now < self._delta_at:
                self._delta_at = now
                self._run.record_activity(now)
                self._run.emit(names.EVENT_LLM_DELTA, now, self._span, self._attributes)

    def finished(self, *reasons: str) -> None:
        """Record the finish reasons that the provider returned."""
        with suppress_errors:
            self._span.set_attribute(names.GEN_AI_RESPONSE_FINISH_REASONS, reasons)

    def error(self, error: BaseException) -> None:
        """Record that the call failed, if its exception does not leave the block."""
        self._failure = error

    def _begin(self, now: float) -> None:
        run, step = self._run, self._step
        self._attributes = {
            **step._attributes,
            names.GEN_AI_OPERATION_NAME: Operation.CHAT.value,
            names.GEN_AI_REQUEST_MODEL: self.model,
            names.GEN_AI_PROVIDER_NAME: self._provider,
        }
        self._open(f"chat {self.model}", SpanKind.CLIENT, step._context, now)
        self._delta_at = now
        run.open_call(self, Phase.LLM, None)
        run.record_activity(now)
        run.emit(names.EVENT_LLM_STARTED, now, self._span, self._attributes)

    def _end(self, now: float, error: BaseException | None) -> None:
        run, span = self._run, self._span
        run.close_call(self)
        failure, self._failure = error or self._failure, None
        if failure is not None:
            self.error_type, self.error_text = run.fail(span, failure)
        if self._tokens is not None:
            input_tokens, output_tokens = self._tokens
            span.set_attribute(names.GEN_AI_USAGE_INPUT_TOKENS, input_tokens)
            span.set_attribute(names.GEN_AI_USAGE_OUTPUT_TOKENS, output_tokens)
            run.token_count += input_tokens + output_tokens
            run.series.count_tokens(self.model, input_tokens, output_tokens)
            self._step._tokens[0] += input_tokens
            self._step._tokens[1] += output_tokens
        span.end(to_nanoseconds(now))
        run.record_activity(now)


class ToolFailedError(Exception):
    """A tool failure reported as text. Its class name is the value of ``error.type``."""


def _is_timeout(error: BaseException) -> bool:
    """Return whether an error is a timeout; HTTP clients have their own classes for it."""
    return isinstance(error, TimeoutError) or "timeout" in type(error).__name__.lower()


def _format_span_id(span: Span) -> str:
    context = span.get_span_context()
    return f"{context.span_id:016x}" if context.is_valid else ""
