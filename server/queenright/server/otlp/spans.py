"""Spans into events: what an agent of any framework did, in Queenright's words. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from queenright.instrumentation.fingerprint import fingerprint
from queenright.instrumentation.identity import clean_name
from queenright.instrumentation.names import SPAN_STEP, ToolOutcome, Verdict, WaitingReason
from queenright.instrumentation.redaction import redact
from queenright.instrumentation.span_kinds import Kind, kind_of, named_in
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.otlp.attribution import Run, Source, Trace
from queenright.server.otlp.batch import Decoded, Memory
from queenright.server.otlp.mapping import (
    EXCEPTION_EVENT,
    EXCEPTION_MESSAGE,
    EXCEPTION_TYPE,
)
from queenright.server.otlp.values import (
    MAX_ATTRIBUTES,
    Fields,
    count_of,
    duration_of,
    fields_of,
    fingerprint_of,
    seconds_of,
    text_of,
)

UNNAMED_TOOL: Final = "unknown"

_HAS_IS_REMOTE: Final = 0x100
_IS_REMOTE: Final = 0x200
_NO_TRACE: Final = bytes(16)
_NO_SPAN: Final = bytes(8)
_ERROR: Final = Status.STATUS_CODE_ERROR
_ENTRY_KINDS: Final = frozenset({Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CONSUMER})
_VERDICTS: Final = frozenset(Verdict)


def decode_spans(request: ExportTraceServiceRequest, memory: Memory, now: float) -> Decoded:
    """
    Return the events that the spans of one request stand for.

    Raises:
        StillStoring: A span of the request is being stored by another request.
    """
    decoded = Decoded()
    for _ in decoding_spans(request, memory, now, decoded):
        pass
    return decoded


def decoding_spans(
    request: ExportTraceServiceRequest, memory: Memory, now: float, decoded: Decoded
) -> Iterator[None]:
    """Decode as `decode_spans` does, pausing after each span and each group."""
    for resource_spans in request.resource_spans:
        decoded.count_group()
        source = Source.of(resource_spans.resource)
        for scope_spans in resource_spans.scope_spans:
            decoded.count_group()
            scope = scope_spans.scope
            decoder = _Decoder(decoded, memory, source, scope_spans.spans, scope.name, scope.version, now)
            decoded.count_items(len(scope_spans.spans))
            yield
            for span in scope_spans.spans:
                decoder.add(span)
                yield
        yield
    decoded.finish()


class _Decoder:
    """Decodes the spans of one scope of one process."""

    __slots__ = (
        "_by_id",
        "_decoded",
        "_framework",
        "_memory",
        "_now",
        "_own_runs",
        "_source",
        "_spans",
        "_version",
    )

    def __init__(
        self,
        decoded: Decoded,
        memory: Memory,
        source: Source,
        spans: Sequence[Span],
        framework: str,
        version: str,
        now: float,
    ) -> None:
        self._decoded = decoded
        self._memory = memory
        self._source = source
        self._spans = spans
        self._framework = framework
        self._version = version
        self._now = now
        self._by_id: dict[bytes, Span] | None = None
        self._own_runs: dict[tuple[bytes, str, str, str], Run] = {}

    def add(self, span: Span) -> None:
        """Decode one span."""
        decoded = self._decoded
        trace_id, span_id = span.trace_id, span.span_id
        if len(trace_id) != 16 or len(span_id) != 8 or trace_id == _NO_TRACE or span_id == _NO_SPAN:
            decoded.reject("a span without a valid trace id (16 bytes) and span id (8 bytes)")
            return
        attributes = span.attributes
        if len(attributes) > MAX_ATTRIBUTES:
            decoded.reject(f"a span with more than {MAX_ATTRIBUTES} attributes")
            return
        found = fields_of(attributes)
        name = span.name
        own = "incarnation" in found or self._source.own
        kind = Kind.STEP if own and "operation" not in found and _is_step(found, name) else _kind(found, name)
        if kind is None:
            decoded.ignored += 1
            self._end_of_trace(span)
            return
        identity = trace_id + span_id
        if identity in decoded.spans or self._memory.duplicates.seen(identity):
            decoded.ignored += 1
            return
        if own and "agent" in found and "session" in found:
            run = self._own_run(trace_id, found)
        else:
            trace = self._memory.attribution.trace(trace_id, self._source)
            run = self._foreign_run(trace, span, found, kind)
        if not run.own:
            if kind is not Kind.AGENT and self._wraps(span, found, kind):
                decoded.ignored += 1
                return
            self._begin(run, span)
        decoded.spans.add(identity)
        decoded.accepted += 1
        _KINDS[kind](self, run, span, found)
        if not run.own:
            self._end_of_trace(span)

    # -- who ------------------------------------------------------------------------------------

    def _foreign_run(self, trace: Trace, span: Span, found: Fields, kind: Kind) -> Run:
        agent, session = text_of(found.get("agent")), text_of(found.get("session"))
        if kind is Kind.AGENT:
            agent = agent or text_of(found.get("entity")) or clean_name(named_in(span.name))
            return trace.agent(self._source, agent, session, span.span_id)
        parent = span.parent_span_id
        if not agent and trace.first is None and parent:
            agent, session = self._around(parent, session)
        return trace.member(self._source, agent, session, parent)

    def _around(self, parent: bytes, session: str) -> tuple[str, str]:
        """
        Return the agent and session of the call around a nameless first span.

        A model client's own span ends a moment before the framework's span of the same call,
        and is in the same batch.
        """
        if self._by_id is None:
            self._by_id = {span.span_id: span for span in self._spans}
        outer = self._by_id.get(parent)
        if outer is None:
            return "", session
        found = fields_of(islice(outer.attributes, MAX_ATTRIBUTES))
        kind = _kind(found, outer.name)
        if kind is None or kind is Kind.AGENT:
            return "", session
        return text_of(found.get("agent")), session or text_of(found.get("session"))

    def _own_run(self, trace_id: bytes, found: Fields) -> Run:
        incarnation = found.get("incarnation")
        key = (
            trace_id,
            found["agent"].string_value,
            found["session"].string_value,
            incarnation.string_value if incarnation is not None else "",
        )
        run = self._own_runs.get(key)
        if run is None:
            trace = self._memory.attribution.trace(trace_id, self._source)
            run = trace.own(
                text_of(found["agent"]),
                text_of(found["session"]),
                text_of(incarnation) or self._source.incarnation_id,
            )
            self._own_runs[key] = run
        return run

    def _wraps(self, span: Span, found: Fields, kind: Kind) -> bool:
        what = f"{kind} {text_of(found.get('tool'))}" if kind is Kind.TOOL else kind.value
        trace = self._memory.attribution.trace(span.trace_id, self._source)
        return trace.wraps(span.span_id, span.parent_span_id, what)

    # -- when it began and ended ----------------------------------------------------------------

    def _begin(self, run: Run, span: Span) -> None:
        """Say that a run of another framework has begun, when the first that is heard of it arrives."""
        end = span.end_time_unix_nano
        if run.open or (run.ended_at and end <= run.ended_at):
            return
        self._decoded.set_open(run, True, run.ended_at)
        data: dict[str, Any] = {"start_records": False}
        if self._framework:
            data["framework"] = clean_name(self._framework)
        if self._version:
            data["version"] = clean_name(self._version)
        self._emit(EventType.EXECUTION_STARTED, run, span, data, {}, at=span.start_time_unix_nano or end)

    def _end_of_trace(self, span: Span) -> None:
        """End what is open in a trace whose outermost span in this process has ended."""
        if not _outermost(span):
            return
        trace = self._memory.attribution.known(span.trace_id, self._source)
        if trace is not None:
            for run in list(trace.open_runs()):
                self._end(run, span)

    def _end(self, run: Run, span: Span) -> None:
        self._decoded.set_open(run, False, span.end_time_unix_nano)
        failure = _failure(span, {})
        self._emit(
            EventType.EXECUTION_FAILED if failure else EventType.EXECUTION_COMPLETED, run, span, failure, {}
        )

    # -- what -----------------------------------------------------------------------------------

    def _agent(self, run: Run, span: Span, found: Fields) -> None:
        trace = self._memory.attribution.known(span.trace_id, self._source)
        nameless = trace is not None and trace.nameless
        if run.own or not nameless or _outermost(span) or not span.flags & _HAS_IS_REMOTE:
            failure = _failure(span, found)
            self._decoded.set_open(run, False, span.end_time_unix_nano)
            kind = EventType.EXECUTION_FAILED if failure else EventType.EXECUTION_COMPLETED
            if text_of(found.get("waiting_reason")) == WaitingReason.PAUSED:
                kind = EventType.EXECUTION_PAUSED
            self._emit(kind, run, span, failure, found)
        # Else: an agent inside another one, both known by the service's name only. The outer one goes on.

    def _step(self, run: Run, span: Span, found: Fields) -> None:
        data = _failure(span, found)
        verdict = found.get("verdict")
        if verdict is not None and verdict.string_value in _VERDICTS:
            data["verdict"] = verdict.string_value
        if "index" in found:
            data["index"] = count_of(found["index"])
        if "feedback" in found:
            data["text"] = redact(found["feedback"].string_value)
        data["duration"] = duration_of(span.start_time_unix_nano, span.end_time_unix_nano)
        self._emit(EventType.STEP_COMPLETED, run, span, data, found)
        run.end_step()

    def _llm(self, run: Run, span: Span, found: Fields) -> None:
        data = _failure(span, found)
        data["duration"] = duration_of(span.start_time_unix_nano, span.end_time_unix_nano)
        run.end_step()
        run.last_llm = span.span_id.hex()
        step = data.copy() if not run.own else None
        for field_ in ("model", "provider"):
            if field_ in found:
                data[field_] = text_of(found[field_])
        for field_ in ("input_tokens", "output_tokens"):
            if field_ in found:
                data[field_] = count_of(found[field_])
        self._emit(EventType.LLM_CALL_COMPLETED, run, span, data, found)
        if step is not None:
            # Frameworks know no steps: a turn of the model is one.
            self._emit(EventType.STEP_COMPLETED, run, span, step, found)

    def _tool(self, run: Run, span: Span, found: Fields) -> None:
        start, end = span.start_time_unix_nano, span.end_time_unix_nano
        data = _failure(span, found)
        data["outcome"] = _outcome(data)
        named = found.get("tool") or found.get("entity")
        data["tool"] = text_of(named) or clean_name(named_in(span.name)) or UNNAMED_TOOL
        if "call_id" in found:
            data["call_id"] = text_of(found["call_id"])
        data["turn"] = run.turn_of(span.span_id.hex(), start, end)
        data["args_hash"] = text_of(found.get("arguments_hash")) or fingerprint_of(found.get("arguments"))
        data["result_hash"] = text_of(found.get("result_hash")) or fingerprint_of(found.get("result"))
        if data["result_hash"] is None and "error_type" in data:
            # The same failure again is the same result again.
            data["result_hash"] = fingerprint(f"{data['error_type']}: {data.get('error', '')}")
        data["duration"] = duration_of(start, end)
        self._emit(EventType.TOOL_CALL_COMPLETED, run, span, data, found)

    def _emit(
        self,
        type_: EventType,
        run: Run,
        span: Span,
        data: dict[str, Any],
        found: Fields,
        *,
        at: int | None = None,
    ) -> None:
        self._decoded.events.append(
            AgentEvent(
                type=type_,
                time=seconds_of(span.end_time_unix_nano if at is None else at, self._now),
                agent_id=run.agent_id,
                session_id=run.session_id,
                incarnation_id=run.incarnation_id,
                graph_id=text_of(found["graph"]) if "graph" in found else "",
                node_id=text_of(found["node"]) if "node" in found else "",
                trace_id=span.trace_id.hex(),
                span_id=span.span_id.hex(),
                data=data,
                id="",
            )
        )


_KINDS: Final = {
    Kind.AGENT: _Decoder._agent,
    Kind.STEP: _Decoder._step,
    Kind.LLM: _Decoder._llm,
    Kind.TOOL: _Decoder._tool,
}


def _kind(found: Fields, name: str) -> Kind | None:
    operation = found.get("operation")
    if operation is not None:
        return kind_of(operation.string_value, "", name)
    return kind_of("", text_of(found.get("marker")), name)


def _is_step(found: Fields, name: str) -> bool:
    """Say whether a span of our own instrumentation without an operation is a step."""
    return "index" in found or "verdict" in found or name == SPAN_STEP or name.startswith(f"{SPAN_STEP} ")


def _outermost(span: Span) -> bool:
    """Say whether a span has no parent in its own process, as far as can be told."""
    return not span.parent_span_id or bool(span.flags & _IS_REMOTE) or span.kind in _ENTRY_KINDS


def _failure(span: Span, found: Fields) -> dict[str, Any]:
    """Return ``error_type`` and ``error`` of a span that failed, else an empty mapping."""
    status = span.status
    error_type = text_of(found.get("error_type"))
    if status.code != _ERROR and not error_type:
        return {}
    message = status.message
    for event in islice(reversed(span.events), MAX_ATTRIBUTES):
        if event.name == EXCEPTION_EVENT:
            texts = {a.key: a.value.string_value for a in islice(event.attributes, MAX_ATTRIBUTES)}
            error_type = error_type or clean_name(texts.get(EXCEPTION_TYPE, ""))
            message = texts.get(EXCEPTION_MESSAGE) or message
            break
    failure: dict[str, Any] = {"error_type": error_type or "error"}
    if message:
        failure["error"] = redact(message)
    return failure


def _outcome(failure: dict[str, Any]) -> str:
    if not failure:
        return ToolOutcome.OK.value
    if "timeout" in failure["error_type"].lower():
        return ToolOutcome.TIMEOUT.value
    return ToolOutcome.ERROR.value
