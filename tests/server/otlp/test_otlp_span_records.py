"""Log records about open spans are read as the span processor wrote them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Status, StatusCode, set_span_in_context

from queenright.instrumentation import names
from queenright.instrumentation.delivery import Delivery
from queenright.instrumentation.names import SpanOutcome
from queenright.instrumentation.open_spans import INTERVAL, OpenSpans
from queenright.instrumentation.otlp import SCOPE
from queenright.server.otlp.decode import decode_logs
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.kind import ObservationKind
from queenright.server.telemetry.sources import SourceData
from queenright.server.telemetry.span_records import SPAN_EVENTS, SpanRecord, read_span_record
from tests.instrumentation.parts import Memory
from tests.instrumentation.test_open_spans import ManualTicker

START_NS = 1_800_000_000 * 10**9


def test_record_is_read_as_written_by_the_processor() -> None:
    """B88: open work is known before any span of the run has ended."""
    exporter_memory, now_ns = Memory(), START_NS
    delivery = Delivery(lambda: exporter_memory)
    processor = OpenSpans(delivery, clock=lambda: now_ns, ticker=ManualTicker())
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("any.library")
    run = tracer.start_span(
        "invoke_agent bee",
        attributes={"gen_ai.agent.name": "bee", "gen_ai.conversation.id": "s-1"},
        start_time=START_NS,
    )
    call = tracer.start_span(
        "execute_tool search",
        set_span_in_context(run),
        attributes={"gen_ai.tool.name": "search", "gen_ai.tool.call.id": "c-1", "session.id": "s-1"},
        start_time=START_NS + 1,
    )
    now_ns += 10**9
    processor.tick()
    now_ns += int(INTERVAL * 1e9)
    processor.tick()
    call.set_attribute("error.type", "TimeoutError")
    call.set_status(Status(StatusCode.ERROR))
    call.end(now_ns + 2)
    provider.shutdown()

    records = [
        ReadableLogRecord(record.to_log_record(), Resource({}), SCOPE) for record in exporter_memory.records
    ]
    [resource] = encode_logs(records).resource_logs
    read_records = [read_span_record(record) for record in resource.scope_logs[0].log_records]

    assert [record.event for record in read_records if record] == [
        names.EVENT_SPAN_STARTED,
        names.EVENT_SPAN_STARTED,
        names.EVENT_SPAN_OPEN,
        names.EVENT_SPAN_OPEN,
        names.EVENT_SPAN_ENDED,
        names.EVENT_SPAN_ENDED,
    ]
    request = ExportLogsServiceRequest(resource_logs=[resource])
    events = decode_logs(request, Assembler(), now_ns / 1e9).events
    assert [event.type.value for event in events] == ["execution_started", "tool_call_started"]
    assert {(event.agent_id, event.session_id) for event in events} == {("bee", "s-1")}
    batch = decode_logs(request, Assembler(), now_ns / 1e9)
    [source] = [source for source in batch.sources if source.records]
    assert (source.dialect, source.records, source.used_records) == ("other", 6, 4)
    assert {SourceData.NAME, SourceData.OPEN_WORK} <= source.parts
    assert events[1].data == {"tool": "search", "call_id": "c-1"}
    agent_record, tool_record, lost_record = read_records[0], read_records[4], read_records[5]
    assert agent_record is not None
    assert (
        agent_record.kind,
        agent_record.agent,
        agent_record.session,
        agent_record.start,
        agent_record.time,
    ) == (
        ObservationKind.AGENT,
        "bee",
        "s-1",
        START_NS,
        START_NS,
    )
    assert agent_record.outcome is None
    assert tool_record == SpanRecord(
        event=names.EVENT_SPAN_ENDED,
        trace_id=call.get_span_context().trace_id.to_bytes(16, "big"),
        span_id=call.get_span_context().span_id.to_bytes(8, "big"),
        parent_id=run.get_span_context().span_id.to_bytes(8, "big"),
        kind=ObservationKind.TOOL,
        name="execute_tool search",
        scope="any.library",
        start=START_NS + 1,
        time=now_ns + 2,
        report_interval=INTERVAL,
        outcome=SpanOutcome.ERROR,
        agent="",
        session="s-1",
        tool="search",
        call_id="c-1",
        model="",
        provider="",
        error_type="TimeoutError",
    )
    assert lost_record is not None
    assert (lost_record.name, lost_record.outcome) == ("invoke_agent bee", SpanOutcome.UNKNOWN)


@pytest.mark.parametrize(
    "record",
    [
        LogRecord(event_name=names.EVENT_TOOL_STARTED, trace_id=b"t" * 16, span_id=b"s" * 8),
        LogRecord(event_name=names.EVENT_SPAN_OPEN, trace_id=b"t" * 16),
        LogRecord(event_name=names.EVENT_SPAN_OPEN, span_id=b"s" * 8),
    ],
)
def test_other_records_and_records_without_a_span_are_not_span_records(record: LogRecord) -> None:
    assert read_span_record(record) is None


values = st.one_of(
    st.text().map(lambda text: AnyValue(string_value=text)),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: AnyValue(int_value=number)),
    st.floats().map(lambda number: AnyValue(double_value=number)),
    st.binary().map(lambda data: AnyValue(bytes_value=data)),
    st.just(AnyValue()),
)
keys = st.sampled_from(
    [value for name, value in vars(names).items() if name.startswith(("OPEN_SPAN", "GEN_AI"))]
)


@given(
    st.sampled_from(sorted(SPAN_EVENTS)),
    st.integers(0, 2**64 - 1),
    st.lists(st.tuples(keys, values), max_size=12),
)
def test_any_record_is_read_without_an_error(
    event: str, time: int, attributes: list[tuple[str, AnyValue]]
) -> None:
    record = LogRecord(event_name=event, time_unix_nano=time, trace_id=b"t" * 16, span_id=b"s" * 8)
    record.attributes.extend(KeyValue(key=key, value=value) for key, value in attributes)

    span_record = read_span_record(record)

    assert span_record is not None
    assert span_record.start >= 0
    assert len(span_record.parent_id) in (0, 8)
    assert (span_record.outcome is not None) == (event == names.EVENT_SPAN_ENDED)
