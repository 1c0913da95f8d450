"""The state of one worker run, and where it is written: spans, start records, metrics, step log."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass
from typing import Any, Final

from opentelemetry.context import Context, get_current
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Status, StatusCode, set_span_in_context

from queenright.instrumentation import names
from queenright.instrumentation.control import ControlChannel
from queenright.instrumentation.errors import error_text
from queenright.instrumentation.forks import fork_count
from queenright.instrumentation.metrics import WorkerFamilies
from queenright.instrumentation.names import Operation, Phase, WaitingReason
from queenright.instrumentation.redaction import mask_name, redact
from queenright.instrumentation.steplog import StepLog
from queenright.instrumentation.telemetry import Attributes, Telemetry
from queenright.instrumentation.ticker import MAX_TICK_SECONDS, TICKER

STALL_SECONDS: Final[Mapping[Phase, float]] = {Phase.IDLE: 240.0, Phase.LLM: 240.0, Phase.TOOL: 600.0}
"""Seconds without activity after which the worker counts a stall; a tool's declared timeout wins."""

_HEARTBEAT_ATTRIBUTES: Final = {
    "task_id": names.TASK_ID,
    "phase": names.HEARTBEAT_PHASE,
    "token_count": names.HEARTBEAT_TOKEN_COUNT,
    "error_count": names.HEARTBEAT_ERROR_COUNT,
    "last_tool_call": names.HEARTBEAT_LAST_TOOL_CALL,
    "progress_indicator": names.HEARTBEAT_PROGRESS,
}

_CAPTURE_VALUES: Final = ("true", "1", "span_only", "span_and_event")
_MAX_RESULTS: Final = 1024
"""Number of result fingerprints kept; a result that is not among them counts as progress."""


def to_nanoseconds(time: float) -> int:
    """Convert seconds since the epoch to nanoseconds, the unit of OpenTelemetry."""
    return int(time * 1_000_000_000)


def is_failure(error: BaseException | None) -> bool:
    """Return whether ``error`` means that a block failed; ``GeneratorExit`` and ``sys.exit(0)`` do not."""
    if error is None or isinstance(error, GeneratorExit):
        return False
    return not (isinstance(error, SystemExit) and error.code in (None, 0))


@dataclass(eq=False, repr=False, kw_only=True)
class Run:
    """
    One run of a worker.

    Methods may raise. Callers on the agent's side wrap them in ``suppress_errors``.
    """

    agent: str
    session_id: str
    incarnation_id: str
    graph_id: str
    framework: str
    version: str
    telemetry: Telemetry
    families: WorkerFamilies
    log: StepLog | None
    heartbeat_interval: float
    clock: Callable[[], float]
    task_id: str = ""
    repeatable: bool = False
    control: ControlChannel | None = None
    first_step: InitVar[int] = 0

    def __post_init__(self, first_step: int) -> None:
        self.attributes: dict[str, str | int | float | bool] = {
            names.GEN_AI_AGENT_NAME: self.agent,
            names.GEN_AI_CONVERSATION_ID: self.session_id,
            names.INCARNATION_ID: self.incarnation_id,
        }
        if self.graph_id:
            self.attributes[names.GRAPH_ID] = self.graph_id
        self.task_id = self.task_id or self.session_id
        self.tracer = self.telemetry.tracer
        self.indexes = itertools.count(first_step)
        self.context: Context = get_current()
        self.trace_id = ""
        self.exemplar: dict[str, str] | None = None
        self.series = self.families.acquire(self.agent)
        # Reported in heartbeats; counted since the start of this incarnation.
        self.token_count = self.error_count = 0
        self.last_tool_call: float | None = None
        self.last_checkpoint_id = ""
        # Whether arguments, results and feedback may leave the process.
        self.captures = os.environ.get(names.CAPTURE_CONTENT_ENV, "").strip().lower() in _CAPTURE_VALUES
        self._span: Span = INVALID_SPAN
        self._process = os.getpid()
        self._fork_count = fork_count.number
        self._has_started = self._has_ended = False
        self._node: str | None = None
        self._bad_steps = 0
        self._last_error_id = 0
        self._results: dict[str, None] = {}
        self._open_calls: dict[int, tuple[Phase, float]] = {}
        self._waiting_reasons: list[str] = []
        self._progress = ""
        self._active_at = self._ticked_at = self._beat_at = 0.0
        self._is_stalled = False

    # -- beginning and end ---------------------------------------------------------------------

    def start(self) -> None:
        """Open the run's span and send the first heartbeat."""
        if self._has_started:
            return
        self._has_started = True
        now = self.clock()
        attributes: dict[str, str | int | float | bool] = {
            **self.attributes,
            names.GEN_AI_OPERATION_NAME: Operation.INVOKE_AGENT.value,
            names.FRAMEWORK: self.framework,
            names.GEN_AI_AGENT_VERSION: self.version,
            names.HEARTBEAT_INTERVAL: self.heartbeat_interval,
            names.TASK_ID: self.task_id,
        }
        if self.repeatable:
            attributes[names.TASK_REPEATABLE] = True
        if self.control is not None:
            attributes[names.CONTROL] = True
        if self.families.is_served:
            attributes[names.METRICS_SERVED] = True
        span = self._span = self.tracer.start_span(
            f"invoke_agent {self.agent}", None, SpanKind.INTERNAL, attributes, start_time=to_nanoseconds(now)
        )
        self.context = set_span_in_context(span)
        context = span.get_span_context()
        if context.is_valid:
            self.trace_id = f"{context.trace_id:032x}"
            self.exemplar = {"trace_id": self.trace_id}
        self.series.set_info(self.framework, self.version)
        self.series.heartbeat(now)
        self.series.progress(now)
        self.series.set_bad_steps(id(self), 0)
        self._ticked_at = self._beat_at = now
        self.record_activity(now)
        self.emit(names.EVENT_AGENT_STARTED, now, span, attributes)
        self._join()

    def _join(self) -> None:
        TICKER.join(self)
        if self.control is not None:
            self.control.start()

    def close(self, error: BaseException | None = None, *, paused: bool = False) -> None:
        """End the run's span and remove its series; once, and not in a child whose parent still runs."""
        if self._has_ended or not self._has_started:
            return
        if os.getpid() != self._process and os.getppid() == self._process:
            return
        self._has_ended = True
        TICKER.leave(self)
        if self.control is not None:
            self.control.close(self.last_checkpoint_id)
        if is_failure(error) and error is not None:
            self.fail(self._span, error)
        if paused:
            self._span.set_attribute(names.WAITING_REASON, WaitingReason.PAUSED.value)
        self._span.end(to_nanoseconds(self.clock()))
        self.series.forget_run(id(self))
        self.families.release(self.series)
        if self.log is not None:
            self.log.close()

    def touch(self) -> None:
        """Start the run if needed, and join the ticker again after a fork."""
        if not self._has_started:
            self.start()
        if self._fork_count != fork_count.number:
            self._fork_count = fork_count.number
            self._join()

    # -- activity -------------------------------------------------------------------------------

    def emit(self, event: str, now: float, span: Span, attributes: Attributes) -> None:
        """Queue a start record or another worker event."""
        self.telemetry.record(event, to_nanoseconds(now), span.get_span_context(), attributes)

    def record_activity(self, now: float) -> None:
        """Record activity, which resets the stall clock."""
        self._active_at = now
        self._is_stalled = False
        self.series.activity(now)

    def enter_node(self, node: str) -> None:
        """Record the start of a step of ``node``; bad steps are counted per visit of a node."""
        self._last_error_id = 0
        if node != self._node:
            self._node = node
            if self._bad_steps:
                self._bad_steps = 0
                self.series.set_bad_steps(id(self), 0)

    def open_call(self, call: object, phase: Phase, timeout: float | None) -> None:
        """Record that a model or tool call is open."""
        self._open_calls[id(call)] = (phase, timeout or STALL_SECONDS[phase])

    def close_call(self, call: object) -> None:
        """Record that a model or tool call has ended."""
        self._open_calls.pop(id(call), None)

    def record_verdict(self, verdict: str, now: float) -> None:
        """Record how a step ended: a verdict in lower case, or ``error``."""
        if verdict == "accept":
            self._bad_steps = 0
            self.series.progress(now)
        elif verdict == "continue":
            return
        else:
            self._bad_steps += 1
        self.series.set_bad_steps(id(self), self._bad_steps)

    def record_result(self, result: str, now: float) -> None:
        """Record a tool result by its fingerprint; a new one counts as progress."""
        if result in self._results:
            return
        if len(self._results) >= _MAX_RESULTS:
            del self._results[next(iter(self._results))]
        self._results[result] = None
        self.series.progress(now)

    def fail(self, span: Span, error: BaseException) -> tuple[str, str]:
        """Mark ``span`` as failed and return the error's type and text. A propagating error counts once."""
        kind, text = mask_name(type(error).__qualname__), redact(error_text(error))
        span.set_attribute(names.ERROR_TYPE, kind)
        span.set_status(Status(StatusCode.ERROR, text))
        if self._last_error_id != id(error):
            self._last_error_id = id(error)
            self.error_count += 1
            self.series.count_error(kind)
        return kind, text

    # -- waiting, checkpoints, heartbeat ----------------------------------------------------------

    def begin_wait(self, reason: WaitingReason) -> None:
        """Begin to wait. Waits may nest; the innermost reason is reported."""
        if self._waiting_reasons:
            self.series.set_waiting(self._waiting_reasons[-1], False)
        self._waiting_reasons.append(reason.value)
        self._report_waiting()

    def end_wait(self) -> None:
        """End the innermost wait."""
        self.series.set_waiting(self._waiting_reasons.pop(), False)
        self._report_waiting()

    def _report_waiting(self) -> None:
        now = self.clock()
        reason = self._waiting_reasons[-1] if self._waiting_reasons else ""
        if reason:
            self.series.set_waiting(reason, True)
        self.record_activity(now)
        self.emit(names.EVENT_WAITING, now, self._span, {**self.attributes, names.WAITING_REASON: reason})

    def checkpoint(self, checkpoint_id: str) -> None:
        """Report a checkpoint, which counts as progress."""
        now = self.clock()
        self.last_checkpoint_id = checkpoint_id
        self.series.set_checkpoint(now)
        self.series.progress(now)
        self.record_activity(now)
        attributes = {**self.attributes, names.CHECKPOINT_ID: checkpoint_id}
        self.emit(names.EVENT_CHECKPOINT, now, self._span, attributes)

    @property
    def phase(self) -> Phase:
        """The current phase: tool if any tool call is open, otherwise llm, otherwise idle."""
        phases = {phase for phase, _ in list(self._open_calls.values())}
        return Phase.TOOL if Phase.TOOL in phases else Phase.LLM if Phase.LLM in phases else Phase.IDLE

    def heartbeat(self, progress: str = "") -> None:
        """Send a heartbeat; ``progress`` is kept for later heartbeats until it is replaced."""
        if progress:
            self._progress = redact(progress)
        now = self._beat_at = self.clock()
        self.series.heartbeat(now)
        attributes = {
            **self.attributes,
            names.HEARTBEAT_INTERVAL: self.heartbeat_interval,
            **{_HEARTBEAT_ATTRIBUTES[key]: value for key, value in self.facts().items()},
        }
        self.emit(names.EVENT_HEARTBEAT, now, self._span, attributes)

    def facts(self) -> dict[str, str | int | float]:
        """Return the heartbeat fields of the run."""
        facts: dict[str, str | int | float] = {
            "task_id": self.task_id,
            "phase": self.phase.value,
            "token_count": self.token_count,
            "error_count": self.error_count,
        }
        if self.last_tool_call is not None:
            facts["last_tool_call"] = self.last_tool_call
        if self._progress:
            facts["progress_indicator"] = self._progress
        return facts

    def output(self, counts: Mapping[str, int]) -> None:
        """Report output totals, by attribute."""
        now = self.clock()
        self.record_activity(now)
        self.emit(names.EVENT_OUTPUT, now, self._span, {**self.attributes, **counts})

    def report(self, event: str, attributes: Mapping[str, str | float]) -> None:
        """Report an event about the process that is not activity."""
        self.emit(event, self.clock(), self._span, {**self.attributes, **attributes})

    def tick(self) -> float:
        """Send a heartbeat if one is due and count a stall; return the seconds until the next tick."""
        now = self.clock()
        if not 0 <= now - self._ticked_at <= 4 * MAX_TICK_SECONDS:
            # The clock jumped or the machine slept, so the elapsed time proves no stall.
            self._active_at = now
        self._ticked_at = now
        # Jitter, so that workers that started together do not send their heartbeats together.
        if now - self._beat_at >= self.heartbeat_interval * random.uniform(0.8, 1.0) or now < self._beat_at:
            self.heartbeat()
        self._detect_stall(now)
        return min(MAX_TICK_SECONDS, max(0.05, self.heartbeat_interval * 0.2))

    def _detect_stall(self, now: float) -> None:
        if self._is_stalled or self._waiting_reasons:
            return
        limits = [limit for _, limit in list(self._open_calls.values())]
        if now - self._active_at >= max(limits, default=STALL_SECONDS[Phase.IDLE]):
            self._is_stalled = True
            self.series.count_stall(self.phase.value)


def make_step_line(run: Run, **fields: Any) -> dict[str, Any]:
    """Return a line of the step log: the identity of the run, then ``fields``."""
    return {
        "agent_id": run.agent,
        "session_id": run.session_id,
        "incarnation_id": run.incarnation_id,
        "graph_id": run.graph_id,
        **fields,
    }
