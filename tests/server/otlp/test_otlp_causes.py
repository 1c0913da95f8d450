"""Known causes of wrong results from frameworks' spans. Each has a general rule."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from queenright.instrumentation import fingerprint, names
from queenright.runtime.events import AgentEvent
from queenright.server.otlp.decode import decode_logs, decode_spans
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.batch import Batch
from tests.server.otlp.framework_spans import (
    NAMED_FIELDS,
    NOW,
    OPEN_FIELDS,
    TRACE,
    agent_span,
    chat_span,
    decode,
    get_event,
    list_workers,
    make_request,
    tool_span,
)


def list_types(decoded: Batch) -> list[str]:
    return [event.type.value for event in decoded.events]


def list_calls(decoded: Batch) -> list[Mapping[str, Any]]:
    return [event.data for event in decoded.events if event.type.value == "tool_call_completed"]


@pytest.mark.parametrize("wrap", ["{}", '{{"output": "{}"}}', '{{"content": "{}", "tool_call_id": "c-1"}}'])
def test_cause_1_placeholder_in_an_envelope_is_not_recorded(wrap: str) -> None:
    """B87: hidden content is not compared, whatever its envelope."""
    hidden = wrap.format("__REDACTED__")
    spans = tool_span(
        2, 1, attributes={"gen_ai.tool.call.arguments": hidden, "gen_ai.tool.call.result": hidden}
    )

    [call] = list_calls(decode(spans))

    assert (call["args_hash"], call["result_hash"]) == (None, None)


def test_cause_2_span_that_ended_before_the_root_does_not_reopen_its_run() -> None:
    """B85: this also applies to a span that arrives in a later request."""
    memory = Assembler()
    decode(chat_span(2, 1, **NAMED_FIELDS, end=2), agent_span(1, "scout", end=9), memory=memory)

    late_batch = decode(tool_span(3, 1, start=3, end=4, scope="another"), memory=memory)

    assert list_types(late_batch) == ["tool_call_completed"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_cause_2_span_that_ends_just_after_the_root_does_not_reopen_its_run(
    order: tuple[int, int],
) -> None:
    """B85: node spans have clocks of their own, which differ by fractions of a millisecond."""
    root = {"id": 1, "name": "invoke_agent scout", "start": 1, "end": 9}
    spans = [
        root | {"attributes": {"gen_ai.operation.name": "invoke_agent"}},
        chat_span(2, 1, start=2, end=9.0005),
    ]

    decoded = decode(*(spans[index] for index in order))

    assert list_types(decoded).count("execution_started") == 1
    assert list_types(decoded).count("execution_completed") == 1
    [end_time] = [event.time for event in decoded.events if event.type.value == "execution_completed"]
    assert {event.time for event in decoded.events if event.type.value == "llm_call_completed"} == {end_time}


def test_cause_2_work_continuing_after_the_root_reopens_its_run() -> None:
    """B85: an agent may continue in the background."""
    memory = Assembler()
    decode(chat_span(2, 1, **NAMED_FIELDS, end=2), agent_span(1, "scout", end=9), memory=memory)

    late_batch = decode(chat_span(3, 1, start=8, end=12), memory=memory)

    assert list_types(late_batch)[0] == "execution_started"


def test_cause_3_run_without_an_agents_span_ends_with_its_outermost_span() -> None:
    """B85: otherwise a framework that exports no agent span after a failure would leave the run open."""
    decoded = decode(chat_span(2, 1, end=2), {"id": 1, "name": "workflow", "end": 3})

    assert list_types(decoded)[-1] == "execution_completed"


def test_cause_4_and_5_spans_with_different_or_no_names_are_one_run() -> None:
    """B86: contradictory span names do not split one run into several workers."""
    decoded = decode(
        chat_span(2, 1, **NAMED_FIELDS),
        tool_span(3, 1),
        chat_span(4, 1, **NAMED_FIELDS),
        agent_span(1, "scout", end=9),
    )

    assert list_workers(decoded.events) == {("scout", "c-1")}


ARGUMENTS: dict[str, Any] = {"q": "hive", "id": 7}
RESULT = '3 results: it\'s "here"'
WRAPPED_ARGUMENTS: dict[str, Any] = {
    "as they are": ARGUMENTS,
    "as JSON in JSON": json.dumps(json.dumps(ARGUMENTS)),
    "as Python prints them": str(ARGUMENTS),
    "in one key": {"input": ARGUMENTS},
    "in one key, as JSON": {"arguments": json.dumps(ARGUMENTS)},
    "of a tool call": {"type": "tool_call", "id": "call_1", "name": "search", "arguments": ARGUMENTS},
    "of a message": [
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "1", "name": "s", "arguments": ARGUMENTS}],
        }
    ],
    "of a graph's step": {
        "input_str": str(ARGUMENTS),
        "tags": ["seq:step:2"],
        "metadata": {"langgraph_step": 2, "langgraph_checkpoint_ns": "tools:0c5c"},
        "inputs": ARGUMENTS,
    },
}
WRAPPED_RESULTS: dict[str, Any] = {
    "as it is": RESULT,
    "as JSON": json.dumps(RESULT),
    "in one key": {"output": RESULT},
    "as a message": {"content": RESULT, "tool_call_id": "call_1", "status": "success", "name": "search"},
    "as a message that was serialized": {
        "output": {
            "lc": 1,
            "type": "constructor",
            "id": ["langchain", "schema", "messages", "ToolMessage"],
            "kwargs": {"content": RESULT, "type": "tool", "tool_call_id": "call_2", "status": "success"},
        },
        "kwargs": {"tags": ["seq:step:4"]},
    },
    "as a message that was printed": f"content={RESULT!r} name='search' tool_call_id='call_3'",
    "as a part": [{"type": "text", "text": RESULT}],
    "as a tool's result": {"content": [{"type": "text", "text": RESULT}], "isError": False},
    "as a message of parts": [
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": RESULT}]}
    ],
}


@pytest.mark.parametrize("shape", WRAPPED_ARGUMENTS)
def test_cause_6_wrapped_arguments_have_the_fingerprint_of_their_payload(shape: str) -> None:
    """B89: only the payload counts, not its envelope."""
    shape_value = WRAPPED_ARGUMENTS[shape]
    content = shape_value if isinstance(shape_value, str) else json.dumps(shape_value)

    [call] = list_calls(decode(tool_span(2, 1, attributes={"gen_ai.tool.call.arguments": content})))

    assert call["args_hash"] == fingerprint(ARGUMENTS)


@pytest.mark.parametrize("shape", WRAPPED_RESULTS)
def test_cause_6_wrapped_results_have_the_fingerprint_of_their_payload(shape: str) -> None:
    """B89: step numbers and call ids do not change the result."""
    shape_value = WRAPPED_RESULTS[shape]
    content = shape_value if isinstance(shape_value, str) else json.dumps(shape_value)

    [call] = list_calls(decode(tool_span(2, 1, attributes={"gen_ai.tool.call.result": content})))

    assert call["result_hash"] == fingerprint(RESULT)


@pytest.mark.parametrize(
    ("first_arguments", "second_arguments"),
    [
        ({"id": 1, "text": "x"}, {"id": 2, "text": "x"}),
        ({"type": "message", "text": "x", "to": "a"}, {"type": "message", "text": "x", "to": "b"}),
        ({"input": {"page": 1}}, {"input": {"page": 2}}),
        ({"step": 1, "input": "x"}, {"step": 2, "input": "x"}),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], [{"type": "text", "text": "a"}]),
    ],
)
def test_cause_6_arguments_that_look_like_an_envelope_are_not_unwrapped(
    first_arguments: Any, second_arguments: Any
) -> None:
    """B26: a call with different arguments is not a repeat."""
    spans = [
        tool_span(index, 1, attributes={"gen_ai.tool.call.arguments": json.dumps(arguments)})
        for index, arguments in ((2, first_arguments), (3, second_arguments))
    ]

    first_call, second_call = list_calls(decode(*spans))

    assert first_call["args_hash"] != second_call["args_hash"]


@pytest.mark.parametrize(
    "events",
    [
        [
            ("gen_ai.tool.message", {"role": "tool", "content": json.dumps(ARGUMENTS), "id": "c-1"}),
            ("gen_ai.choice", {"message": json.dumps([{"text": RESULT}]), "id": "c-1"}),
        ],
        [("tool.input", {"input": str(ARGUMENTS)}), ("tool.output", {"output": RESULT})],
        [
            (
                "gen_ai.client.inference.operation.details",
                {
                    "gen_ai.input.messages": json.dumps(WRAPPED_ARGUMENTS["of a message"]),
                    "gen_ai.output.messages": json.dumps(WRAPPED_RESULTS["as a message of parts"]),
                },
            )
        ],
    ],
)
def test_cause_6_content_may_be_in_span_events(events: list[Any]) -> None:
    """B89: loops are also found in content that is recorded in span events."""
    [call] = list_calls(decode(tool_span(2, 1, events=events)))

    assert (call["args_hash"], call["result_hash"]) == (fingerprint(ARGUMENTS), fingerprint(RESULT))


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda values: (
            st.lists(values)
            | st.dictionaries(
                st.sampled_from(["input", "content", "type", "role", "lc", "text", "parts", "x"]), values
            )
        ),
        max_leaves=12,
    )
)
def test_cause_6_any_content_is_read_without_an_error(content: Any) -> None:
    """B89: equal content has equal fingerprints, whatever it is."""
    spans = [
        tool_span(span_id, 1, attributes={"gen_ai.tool.call.result": json.dumps(content)})
        for span_id in (2, 3)
    ]

    first_call, second_call = list_calls(decode(*spans))

    assert first_call["result_hash"] == second_call["result_hash"]


EXCEPTION = ("exception", {"exception.type": "ApiError", "exception.message": "503 overloaded"})


@pytest.mark.parametrize(
    "failure_fields",
    [
        {"error": "503 overloaded", "attributes": {"error.type": "ApiError"}},
        {"error": "", "events": [EXCEPTION]},
        {"events": [EXCEPTION]},
        {"attributes": {"error.type": "ApiError", "error.message": "503 overloaded"}},
        {"attributes": {"exception.type": "ApiError", "exception.message": "503 overloaded"}},
    ],
)
@pytest.mark.parametrize("kind", [chat_span, tool_span])
def test_cause_7_failure_is_recognised_in_every_record_format(
    kind: Any, failure_fields: dict[str, Any]
) -> None:
    """B34: the record is a status, an exception event or only attributes."""
    decoded = decode(kind(2, 1, **failure_fields))

    completion = next(event.data for event in decoded.events if event.type.value.endswith("call_completed"))
    assert (completion["error_type"], completion["error"]) == ("ApiError", "503 overloaded")


@pytest.mark.parametrize("expected", ["false", "", "None"])
def test_cause_7_attribute_without_an_error_is_not_a_failure(expected: str) -> None:
    [call] = list_calls(decode(tool_span(2, 1, attributes={"error": expected})))

    assert (call["outcome"], "error_type" in call) == ("ok", False)


def test_cause_7_model_call_that_succeeded_after_retries_has_not_failed() -> None:
    usage = {"gen_ai.usage.output_tokens": 8}

    decoded = decode(chat_span(2, 1, events=[EXCEPTION], attributes=usage))

    assert "error_type" not in get_event(decoded, "llm_call_completed").data


@pytest.mark.parametrize(
    ("spans", "outcome"),
    [
        ([chat_span(2, 1, **NAMED_FIELDS, error="x"), agent_span(1, "scout", end=9)], "execution_failed"),
        (
            [
                chat_span(2, 1, **NAMED_FIELDS, error="x"),
                chat_span(3, 1, **NAMED_FIELDS),
                agent_span(1, "scout", end=9),
            ],
            "execution_completed",
        ),
        (
            [agent_span(2, "inner", parent=1, error="x"), {"id": 1, "name": "task", "end": 9}],
            "execution_failed",
        ),
        (
            [chat_span(3, 2), agent_span(2, "inner", parent=1, error="x"), agent_span(1, "outer", end=9)],
            "execution_failed",
        ),
        (
            [chat_span(2, 1, **NAMED_FIELDS), agent_span(1, "scout", end=9, events=[EXCEPTION])],
            "execution_failed",
        ),
    ],
)
def test_cause_7_run_fails_if_its_last_model_call_or_inner_agent_failed(
    spans: list[dict[str, Any]], outcome: str
) -> None:
    """B34: the run's own span need not report the failure."""
    end_types = [
        type_ for type_ in list_types(decode(*spans)) if type_ in ("execution_failed", "execution_completed")
    ]

    assert end_types == [outcome]


@pytest.mark.parametrize(
    ("name", "attributes", "event"),
    [
        ("x", {"gen_ai.operation.name": "llm_call"}, "llm_call_completed"),
        ("x", {"gen_ai.operation.name": "tool_call"}, "tool_call_completed"),
        ("x", {"gen_ai.operation.name": "agent_call"}, "execution_completed"),
        ("x", {"gen_ai.operation.name": "tool.execution"}, "tool_call_completed"),
        ("x", {"span.type": "LLM"}, "llm_call_completed"),
        ("x", {"span.type": "tool"}, "tool_call_completed"),
        ("x", {"langfuse.observation.type": "generation"}, "llm_call_completed"),
        ("x", {"langsmith.span.kind": "llm"}, "llm_call_completed"),
        ("x", {"mlflow.spanType": '"CHAT_MODEL"'}, "llm_call_completed"),
        ("chat m", {"span.type": "http"}, "llm_call_completed"),
        (
            "Chat completion with {gen_ai.request.model!r}",
            {"gen_ai.request.model": "m"},
            "llm_call_completed",
        ),
        ("Chat Completion with 'm'", {}, "llm_call_completed"),
        ("Responses API with {gen_ai.request.model!r}", {}, "llm_call_completed"),
        ("Function: {name}", {"name": "search"}, "tool_call_completed"),
        ("Function: search", {}, "tool_call_completed"),
        ("Agent run: {name!r}", {"name": "scout"}, "execution_completed"),
        ("Agent run: 'scout'", {}, "execution_completed"),
        ("tools/call search", {}, "tool_call_completed"),
        ("tool_call search", {}, "tool_call_completed"),
        ("AgentRun scout", {}, "execution_completed"),
        ("llm.request m", {}, "llm_call_completed"),
    ],
)
def test_cause_8_kind_is_read_from_operations_markers_templates_and_words(
    name: str, attributes: dict[str, Any], event: str
) -> None:
    """B89: this includes conventions that are not documented."""
    end_event = get_event(decode({"id": 1, "name": name, "attributes": attributes}), event)

    if "search" in (name.split()[-1], attributes.get("name")):
        assert end_event.data["tool"] == "search"
    if "scout" in name or attributes.get("name") == "scout":
        assert end_event.agent_id == "scout"


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("x", {"gen_ai.operation.name": "create_agent"}),
        ("x", {"gen_ai.operation.name": "list_tools"}),
        ("chat m", {"openinference.span.kind": "CHAIN"}),
        ("x", {"span.type": "web"}),
        ("GET /tools/call", {}),
        ("model", {}),
        ("agent", {}),
        ("Agent workflow", {}),
        ("execute", {}),
        ("load_model x", {}),
    ],
)
def test_cause_8_spans_with_other_operation_names_are_ignored(name: str, attributes: dict[str, Any]) -> None:
    assert decode({"id": 1, "name": name, "attributes": attributes}).events == []


TOKENS = {"gen_ai.usage.input_tokens": 120, "gen_ai.usage.output_tokens": 8}


@pytest.mark.parametrize("kind", [chat_span, tool_span])
@pytest.mark.parametrize("parent", [1, 2, 5])
def test_cause_9_call_traced_by_two_libraries_counts_once(kind: Any, parent: int) -> None:
    """B84: the spans are siblings, or parent and child, or have a span between them. Tokens count once."""
    of_framework = kind(2, 1, start=1, end=3.1, scope="framework", attributes=TOKENS)
    of_client = kind(3, parent, start=1.1, end=3, scope="client", attributes=TOKENS)

    decoded = decode(of_framework, of_client, agent_span(1, "scout", end=9))

    assert len([type_ for type_ in list_types(decoded) if type_.endswith("call_completed")]) == 1


def test_cause_9_preparation_marked_as_a_model_call_is_not_counted() -> None:
    """B84: LlamaIndex marks the spans of a model's helpers like model calls."""
    model_call_attributes = {"openinference.span.kind": "LLM"}
    helper = {
        "id": 2,
        "parent": 1,
        "name": "Model._prepare_chat",
        "start": 1,
        "end": 2,
        "attributes": model_call_attributes,
    }
    call = {
        "id": 3,
        "parent": 1,
        "name": "Model.achat",
        "start": 2,
        "end": 3,
        "attributes": model_call_attributes,
    }
    inner = {
        "id": 4,
        "parent": 1,
        "name": "Model._call",
        "start": 4,
        "end": 5,
        "attributes": model_call_attributes | TOKENS,
    }

    decoded = decode(helper, call, inner, agent_span(1, "scout", end=9))

    assert list_types(decoded).count("llm_call_completed") == 2


@pytest.mark.parametrize("kind", [chat_span, tool_span])
def test_cause_9_concurrent_calls_of_one_library_count_separately(kind: Any) -> None:
    """B31: a framework that makes parallel calls reports each call in its own span."""
    decoded = decode(*(kind(span_id, 1, start=1, end=3, attributes=TOKENS) for span_id in (2, 3)))

    assert len([type_ for type_ in list_types(decoded) if type_.endswith("call_completed")]) == 2


@pytest.mark.parametrize(
    "difference",
    [
        {"start": 5, "end": 6},
        {"attributes": {"gen_ai.tool.call.arguments": "[2]", "gen_ai.tool.call.id": ""}},
        {"attributes": {"gen_ai.tool.call.id": "c-2"}},
        {"attributes": {"gen_ai.tool.name": "read"}},
    ],
)
def test_cause_9_different_calls_of_another_library_count(difference: dict[str, Any]) -> None:
    shared_attributes = {"gen_ai.tool.call.arguments": "[1]", "gen_ai.tool.call.id": "c-1"}
    first_span = tool_span(2, 1, start=1, end=3, scope="framework", attributes=shared_attributes)
    other_fields = (
        {"start": 1, "end": 3}
        | difference
        | {"attributes": shared_attributes | difference.get("attributes", {})}
    )

    decoded = decode(first_span, tool_span(3, 1, scope="client", **other_fields))

    assert len(list_calls(decoded)) == 2


def test_cause_9_server_side_of_a_tool_call_is_not_a_call() -> None:
    """B84: the span is from the process of the MCP server, which is not an agent."""
    decoded = decode(tool_span(3, 2, kind=2, flags=0x300), service="mcp-server")

    assert decoded.events == []


def test_cause_9_work_reported_open_by_two_libraries_starts_and_ends_once() -> None:
    """B88: the work does not stay open."""
    memory = Assembler()
    events = [
        event
        for span in (
            tool_span(2, 1, **NAMED_FIELDS, start=1, scope="framework", **OPEN_FIELDS),
            tool_span(3, 1, **NAMED_FIELDS, start=1.1, scope="client", **OPEN_FIELDS),
            tool_span(3, 1, **NAMED_FIELDS, start=1.1, end=5, scope="client"),
            tool_span(2, 1, **NAMED_FIELDS, start=1, end=6, scope="framework"),
        )
        for event in decode(span, memory=memory).events
    ]

    work = [event for event in events if event.type.value.startswith("tool")]
    assert [event.type.value for event in work] == ["tool_call_started", "tool_call_completed"]
    assert work[0].data["call_id"] == work[1].data["call_id"]


def make_record(
    event: str, id_: int, parent: int, seconds: float, **attributes: str
) -> ExportLogsServiceRequest:
    """Return a log record, as `watch_spans` sends it, about a tool call."""
    all_attributes = {names.OPEN_SPAN_KIND: "tool", names.GEN_AI_TOOL_NAME: "search", **attributes}
    if parent:
        all_attributes[names.OPEN_SPAN_PARENT_ID] = f"{parent:016x}"
    message = ExportLogsServiceRequest()
    group = message.resource_logs.add()
    group.resource.attributes.append(KeyValue(key="service.name", value=AnyValue(string_value="svc")))
    log_record = LogRecord(
        event_name=event,
        trace_id=TRACE,
        span_id=id_.to_bytes(8, "big"),
        time_unix_nano=int((NOW - 100 + seconds) * 1e9),
        attributes=[
            KeyValue(key=key, value=AnyValue(string_value=content)) for key, content in all_attributes.items()
        ],
    )
    start_time = AnyValue(int_value=int((NOW - 99) * 1e9))
    log_record.attributes.append(KeyValue(key=names.OPEN_SPAN_START, value=start_time))
    group.scope_logs.add().log_records.append(log_record)
    return message


def take_message(message: ExportLogsServiceRequest, memory: Assembler, now: float) -> list[AgentEvent]:
    batch = decode_logs(message, memory, now)
    memory.duplicates.finish_storing(batch.identities, is_stored=True)
    return batch.events


def test_cause_10_dropped_span_leaves_no_open_work() -> None:
    """B88: the record of the end counts if the span does not arrive within a minute."""
    memory = Assembler()
    result = take_message(make_record(names.EVENT_SPAN_STARTED, 2, 1, 1), memory, NOW)
    immediate = take_message(make_record(names.EVENT_SPAN_ENDED, 2, 1, 3), memory, NOW)
    later_events = take_message(ExportLogsServiceRequest(), memory, NOW + 61)
    late_span = decode(tool_span(2, 1, start=1, end=3), memory=memory)

    assert [event.type.value for event in result] == ["execution_started", "tool_call_started"]
    assert (immediate, late_span.events) == ([], [])
    [end_event] = later_events
    assert (end_event.type.value, end_event.data["outcome"]) == ("tool_call_completed", "ok")
    assert end_event.data["call_id"] == result[1].data["call_id"]
    assert end_event.time == pytest.approx(NOW - 97)


def test_cause_10_span_that_arrives_after_the_record_of_its_end_counts_once() -> None:
    """B84: the content comes from the span."""
    memory = Assembler()
    take_message(make_record(names.EVENT_SPAN_STARTED, 2, 1, 1), memory, NOW)
    take_message(make_record(names.EVENT_SPAN_ENDED, 2, 1, 3), memory, NOW)
    [call] = list_calls(
        decode(tool_span(2, 1, start=1, end=3, attributes={"gen_ai.tool.call.result": "x"}), memory=memory)
    )
    later_events = take_message(ExportLogsServiceRequest(), memory, NOW + 61)

    assert call["result_hash"] == fingerprint("x")
    assert later_events == []


def test_cause_10_run_of_a_dropped_root_ends() -> None:
    memory = Assembler()
    attributes = {
        names.OPEN_SPAN_KIND: "agent",
        names.OPEN_SPAN_OUTCOME: "error",
        names.ERROR_TYPE: "ApiError",
    }
    take_message(make_record(names.EVENT_SPAN_STARTED, 1, 0, 1, **attributes), memory, NOW)
    take_message(make_record(names.EVENT_SPAN_ENDED, 1, 0, 3, **attributes), memory, NOW)

    [end_event] = take_message(ExportLogsServiceRequest(), memory, NOW + 61)

    assert (end_event.type.value, end_event.data["error_type"]) == ("execution_failed", "ApiError")


def test_cause_11_unreadable_span_is_rejected_with_the_reason() -> None:
    """B90: the other spans of the request are accepted."""
    message = make_request(tool_span(2, 1), chat_span(3, 1))
    message.resource_spans[0].scope_spans[0].spans[0].trace_id = b"short"

    batch = decode_spans(message, Assembler(), NOW)

    assert (batch.rejected, batch.accepted) == (1, 1)
    assert "valid trace id" in batch.reasons[0]


RUN = [
    chat_span(2, 1, start=1, end=2, **NAMED_FIELDS),
    chat_span(12, 2, start=1.1, end=1.9, scope="client"),
    tool_span(
        3, 1, start=2, end=3, attributes={**NAMED_FIELDS["attributes"], "gen_ai.tool.call.arguments": "[1]"}
    ),
    tool_span(
        4, 1, start=2, end=4, attributes={**NAMED_FIELDS["attributes"], "gen_ai.tool.call.arguments": "[2]"}
    ),
    chat_span(5, 1, start=4, end=5, **NAMED_FIELDS),
    agent_span(1, "scout", start=0, end=6, attributes=NAMED_FIELDS["attributes"]),
]
"""Spans of one run. All name their agent, except the span of the model client."""


@given(data=st.data())
def test_order_splits_repeats_and_delays_of_spans_change_nothing(data: st.DataObject) -> None:
    """B84: there is one worker, each piece of work counts once, and nothing stays open."""
    named_spans = [span for span in RUN if span["id"] != 12]
    order = data.draw(
        st.permutations(named_spans + data.draw(st.lists(st.sampled_from(named_spans), max_size=4)))
    )
    remaining_spans = iter(order)
    memory = Assembler()
    events: list[AgentEvent] = []
    while batch := list(islice(remaining_spans, data.draw(st.integers(1, 4)))):
        events += decode(*batch, memory=memory).events

    assert {(event.agent_id, event.session_id) for event in events} == {("scout", "c-1")}
    event_types = [event.type.value for event in events]
    once_only_types = ("llm_call_completed", "step_completed", "tool_call_completed", "execution_completed")
    assert [event_types.count(type_) for type_ in once_only_types] == [2, 2, 2, 1]
    arguments = {event.data["args_hash"] for event in events if event.type.value == "tool_call_completed"}
    assert arguments == {fingerprint([1]), fingerprint([2])}


@given(data=st.data())
def test_order_within_one_request_changes_nothing(data: st.DataObject) -> None:
    """B84: this holds whatever the scope of each span."""
    expected_events = [
        (event.type, event.span_id, event.agent_id, event.session_id) for event in decode(*RUN).events
    ]

    shuffled_batch = decode(*data.draw(st.permutations(RUN)))

    assert [
        (event.type, event.span_id, event.agent_id, event.session_id) for event in shuffled_batch.events
    ] == expected_events


@pytest.mark.parametrize(
    "attributes",
    [
        {"metadata": '{"ls_provider": "openai", "lc_agent_name": "porter", "langgraph_step": 1}'},
        {"langsmith.metadata.lc_agent_name": "porter"},
        {"traceloop.association.properties.lc_agent_name": "porter"},
    ],
)
def test_cause_4_langchain_metadata_on_each_span_names_the_agent(attributes: dict[str, Any]) -> None:
    """B86: this applies to the first span that arrives, too."""
    spans = tool_span(2, 1, attributes=attributes | {"gen_ai.operation.name": "execute_tool"})
    assert {event.agent_id for event in decode(spans).events} == {"porter"}


@pytest.mark.parametrize(
    "metadata", ["", "{", '{"lc_agent_name": 7}', '{"lc_agent_name": ""}', "x" * 100_000]
)
def test_cause_4_metadata_without_a_name_sets_no_name(metadata: str) -> None:
    agent_ids = {
        event.agent_id for event in decode(tool_span(2, 1, attributes={"metadata": metadata})).events
    }
    assert agent_ids == {event.agent_id for event in decode(tool_span(2, 1, attributes={})).events}


def test_cause_6_prompt_and_completion_of_a_tool_span_are_its_content() -> None:
    """B89: LangSmith exports the content of tool calls in this form."""
    content = {"gen_ai.prompt": '{"q": 1}', "gen_ai.completion": '{"output": {"content": "seven"}}'}
    [call] = list_calls(decode(tool_span(2, 1, attributes=content)))
    assert call["args_hash"] == fingerprint({"q": 1})
    assert call["result_hash"] == fingerprint("seven")


def test_cause_8_usage_in_an_object_is_counted() -> None:
    """B84: this applies even if the separate counts are hidden."""
    usage = {
        "langsmith.metadata.usage_metadata": '{"input_tokens": 70, "output_tokens": 5, "total_tokens": 75}'
    }
    [call] = [
        event.data
        for event in decode(chat_span(2, 1, attributes=usage)).events
        if event.type == "llm_call_completed"
    ]
    assert (call["input_tokens"], call["output_tokens"]) == (70, 5)


@pytest.mark.parametrize(
    "usage", ["", "[]", "7", '{"input_tokens": -1}', '{"input_tokens": "x"}', "{" * 20_000]
)
def test_cause_8_unreadable_usage_is_ignored(usage: str) -> None:
    decoded = decode(chat_span(2, 1, attributes={"langsmith.metadata.usage_metadata": usage}))
    [call] = [event.data for event in decoded.events if event.type == "llm_call_completed"]
    assert not call.get("input_tokens")


def test_cause_3_root_that_ended_before_a_run_began_does_not_end_it() -> None:
    """B85: a framework may trace the creation of an agent in a separate span."""
    memory = Assembler()
    run_start = decode(agent_span(9, "porter", start=5, **OPEN_FIELDS), memory=memory)
    operation = {"gen_ai.operation.name": "create_agent"}
    creation = {"id": 8, "name": "create_agent porter", "start": 1, "end": 2, "attributes": operation}

    assert list_types(run_start) == ["execution_started"]
    assert list_types(decode(creation, memory=memory)) == []


def test_cause_4_work_below_missing_spans_belongs_to_the_open_agent() -> None:
    """
    B86: the agent's span is reported as open. The spans between the agent and a call are not work of agents.
    """
    memory = Assembler()
    start_batch = decode(agent_span(9, "porter", start=1, **OPEN_FIELDS), memory=memory)
    later_batch = decode(chat_span(3, 2, start=2, end=3), memory=memory)

    assert list_workers([*start_batch.events, *later_batch.events]) == {("porter", TRACE.hex())}
