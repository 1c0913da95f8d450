"""Spans of frameworks in each generation of the semantic conventions, and the workers that they belong to."""

from __future__ import annotations

from typing import Any

import pytest

from queenright.instrumentation import fingerprint
from queenright.instrumentation.fingerprint import result_fingerprint
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.otlp.decode import decode_spans
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.dialects import ATTRIBUTES
from queenright.server.telemetry.process import Process
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

LLM = {
    "semantic conventions now": (
        "chat gpt-4o",
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "gpt-4o",
            "gen_ai.usage.input_tokens": 120,
            "gen_ai.usage.output_tokens": 8,
        },
    ),
    "semantic conventions 1.27": (
        "chat gpt-4o",
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.system": "openai",
            "gen_ai.request.model": "gpt-4o",
            "gen_ai.usage.input_tokens": 120,
            "gen_ai.usage.output_tokens": 8,
        },
    ),
    "semantic conventions 1.26": (
        "text_completion gpt-4o",
        {
            "gen_ai.system": "openai",
            "gen_ai.request.model": "gpt-4o",
            "gen_ai.usage.prompt_tokens": 120,
            "gen_ai.usage.completion_tokens": 8,
        },
    ),
    "OpenLLMetry": (
        "openai.chat",
        {
            "llm.request.type": "chat",
            "gen_ai.system": "openai",
            "gen_ai.request.model": "gpt-4o",
            "gen_ai.prompt.0.role": "user",
            "gen_ai.usage.prompt_tokens": 120,
            "gen_ai.usage.completion_tokens": 8,
        },
    ),
    "OpenLLMetry, older": (
        "openai.chat",
        {
            "llm.request.type": "chat",
            "llm.vendor": "openai",
            "llm.request.model": "gpt-4o",
            "llm.usage.prompt_tokens": 120,
            "llm.usage.completion_tokens": 8,
        },
    ),
    "OpenInference": (
        "ChatOpenAI",
        {
            "openinference.span.kind": "LLM",
            "llm.provider": "openai",
            "llm.model_name": "gpt-4o",
            "llm.token_count.prompt": 120,
            "llm.token_count.completion": 8,
        },
    ),
    "Google's generate_content": (
        "generate_content gpt-4o",
        {
            "gen_ai.operation.name": "generate_content",
            "gen_ai.system": "openai",
            "gen_ai.request.model": "gpt-4o",
            "gen_ai.usage.input_tokens": "120",
            "gen_ai.usage.output_tokens": 8.0,
        },
    ),
    "Vercel's AI SDK": (
        "ai.generateText.doGenerate",
        {
            "ai.operationId": "ai.generateText.doGenerate",
            "ai.model.id": "gpt-4o",
            "ai.model.provider": "openai",
            "ai.usage.promptTokens": 120,
            "ai.usage.completionTokens": 8,
        },
    ),
    "both spellings, the current one wins": (
        "chat gpt-4o",
        {
            "gen_ai.system": "az.ai.openai",
            "gen_ai.provider.name": "openai",
            "gen_ai.usage.prompt_tokens": 1,
            "gen_ai.usage.input_tokens": 120,
            "gen_ai.request.model": "gpt-4o",
            "gen_ai.response.model": "gpt-4o-2024-08-06",
            "gen_ai.usage.output_tokens": 8,
        },
    ),
}


@pytest.mark.parametrize("shape", LLM)
def test_model_call_is_a_call_and_a_step(shape: str) -> None:
    name, attributes = LLM[shape]

    decoded = decode({"id": 1, "parent": 9, "name": name, "attributes": attributes})

    llm = get_event(decoded, "llm_call_completed").data
    assert (llm["provider"], llm["model"]) == ("openai", "gpt-4o")
    assert (llm["input_tokens"], llm["output_tokens"]) == (120, 8)
    assert get_event(decoded, "step_completed").data == {
        "duration": pytest.approx(0.5),
        "is_model_turn": True,
    }


ARGUMENTS, RESULT = '{"q": "hive", "n": 1}', "nothing found"
TOOL = {
    "semantic conventions now": (
        "execute_tool search",
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "search",
            "gen_ai.tool.call.id": "c-1",
            "gen_ai.tool.call.arguments": ARGUMENTS,
            "gen_ai.tool.call.result": RESULT,
        },
    ),
    "pydantic-ai, older": (
        "running tool",
        {
            "gen_ai.tool.name": "search",
            "gen_ai.tool.call.id": "c-1",
            "tool_arguments": ARGUMENTS,
            "tool_response": RESULT,
        },
    ),
    "named only": (
        "execute_tool search",
        {
            "gen_ai.tool.call.id": "c-1",
            "gen_ai.tool.call.arguments": ARGUMENTS,
            "gen_ai.tool.call.result": RESULT,
        },
    ),
    "OpenLLMetry": (
        "search.tool",
        {
            "traceloop.span.kind": "tool",
            "traceloop.entity.name": "search",
            "gen_ai.tool.call.id": "c-1",
            "traceloop.entity.input": ARGUMENTS,
            "traceloop.entity.output": RESULT,
        },
    ),
    "OpenInference": (
        "search",
        {
            "openinference.span.kind": "TOOL",
            "tool.name": "search",
            "tool_call.id": "c-1",
            "input.value": ARGUMENTS,
            "output.value": RESULT,
        },
    ),
    "Google's agents": (
        "execute_tool search",
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "search",
            "gen_ai.tool.call.id": "c-1",
            "gcp.vertex.agent.tool_call_args": ARGUMENTS,
            "gcp.vertex.agent.tool_response": RESULT,
        },
    ),
    "Vercel's AI SDK": (
        "ai.toolCall",
        {
            "ai.operationId": "ai.toolCall",
            "ai.toolCall.name": "search",
            "ai.toolCall.id": "c-1",
            "ai.toolCall.args": ARGUMENTS,
            "ai.toolCall.result": RESULT,
        },
    ),
}


@pytest.mark.parametrize("shape", TOOL)
def test_tool_call_has_fingerprints_of_its_recorded_content(shape: str) -> None:
    """B27: key order and white space in the arguments do not matter."""
    name, attributes = TOOL[shape]

    call = get_event(
        decode({"id": 1, "parent": 9, "name": name, "attributes": attributes}), "tool_call_completed"
    ).data

    assert (call["tool"], call["call_id"], call["outcome"]) == ("search", "c-1", "ok")
    assert call["args_hash"] == fingerprint({"n": 1, "q": "hive"})
    assert call["result_hash"] == result_fingerprint(RESULT)


AGENT = {
    "semantic conventions": (
        "invoke_agent x",
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "scout"},
    ),
    "named only": ("invoke_agent scout", {}),
    "pydantic-ai, older": ("agent run", {"agent_name": "scout", "model_name": "gpt-4o"}),
    "OpenLLMetry": ("scout.agent", {"traceloop.span.kind": "agent", "traceloop.entity.name": "scout"}),
    "OpenInference": ("AgentExecutor", {"openinference.span.kind": "AGENT", "agent.name": "scout"}),
}


@pytest.mark.parametrize("shape", AGENT)
def test_agent_span_is_a_run(shape: str) -> None:
    name, attributes = AGENT[shape]

    decoded = decode({"id": 1, "name": name, "attributes": attributes})

    assert [event.type.value for event in decoded.events] == ["execution_started", "execution_completed"]
    assert list_workers(decoded.events) == {("scout", TRACE.hex())}


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("embeddings text", {"gen_ai.operation.name": "embeddings"}),
        ("create_agent scout", {"gen_ai.operation.name": "create_agent"}),
        ("running 2 tools", {}),
        ("running tools", {}),
        ("GET /", {"http.request.method": "GET"}),
        ("health_check scout", {"queenright.incarnation.id": "i-1"}),
        ("chain", {"openinference.span.kind": "CHAIN"}),
        ("step research", {}),
    ],
)
def test_other_spans_are_ignored_and_counted(name: str, attributes: dict[str, Any]) -> None:
    decoded = decode({"id": 1, "name": name, "attributes": attributes})

    assert (decoded.events, decoded.ignored, decoded.accepted) == ([], 1, 0)


CONVERSATION = {"gen_ai.conversation.id": "c-1"}


@pytest.mark.parametrize("batch", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("spans", "worker"),
    [
        # The children do not name their agent. The run has the service's name until the agent's span arrives.
        (
            [chat_span(2, 1), tool_span(3, 1), chat_span(4, 1), agent_span(1, "scout", end=9)],
            ("scout", TRACE.hex()),
        ),
        # Only the model calls name the agent.
        (
            [
                chat_span(2, 1, **NAMED_FIELDS),
                tool_span(3, 1),
                chat_span(4, 1, **NAMED_FIELDS),
                agent_span(1, "scout", end=9),
            ],
            ("scout", "c-1"),
        ),
        # Between the agent and its tools, there is a span that is not a GenAI span.
        (
            [
                chat_span(2, 1, **NAMED_FIELDS),
                tool_span(4, 3),
                {"id": 3, "parent": 1, "name": "task"},
                agent_span(1, "scout"),
            ],
            ("scout", "c-1"),
        ),
        # Only the agent's span has the conversation id.
        ([chat_span(2, 1), agent_span(1, "scout", attributes=CONVERSATION)], ("scout", "c-1")),
    ],
)
def test_one_run_is_one_worker_however_its_spans_are_batched(
    spans: list[dict[str, Any]], worker: tuple[str, str], batch: int
) -> None:
    memory = Assembler()
    events: list[AgentEvent] = []
    for number, span in enumerate(spans):
        span.setdefault("end", number)
        span.setdefault("start", number - 0.5)
    for offset in range(0, len(spans), batch):
        events += decode(*spans[offset : offset + batch], memory=memory).events

    assert list_workers(events) == {worker}
    types = [event.type.value for event in events if event.type is not EventType.AGENT_RENAMED]
    assert (types[0], types[-1]) == ("execution_started", "execution_completed")
    assert (types.count("execution_started"), types.count("execution_completed")) == (1, 1)


def test_model_client_span_is_not_counted_in_addition_to_the_frameworks() -> None:
    client_span = chat_span(3, 2, attributes={"gen_ai.system": "openai"})
    framework_span = chat_span(2, 1, **NAMED_FIELDS)

    decoded = decode(client_span, framework_span, tool_span(4, 1), agent_span(1, "scout", end=9))

    assert list_workers(decoded.events) == {("scout", "c-1")}
    assert [event.type.value for event in decoded.events].count("llm_call_completed") == 1
    assert decoded.ignored == 1


def test_inner_agent_does_not_end_the_outer() -> None:
    """B86: the outer agent gives the run its name."""
    decoded = decode(
        chat_span(3, 2),
        agent_span(2, "inner", parent=1, end=1),
        chat_span(4, 1, end=2),
        agent_span(1, "outer", start=-1, end=3),
    )

    assert list_workers(decoded.events) == {("outer", TRACE.hex())}
    assert [event.type.value for event in decoded.events].count("execution_completed") == 1


def test_call_without_an_agent_ends_with_its_trace_and_cannot_stall() -> None:
    """Otherwise a web service that makes one model call per request would be a stalled agent."""
    memory = Assembler()
    inside = decode(chat_span(2, 1), memory=memory)
    root = decode({"id": 1, "name": "GET /", "kind": 2, "end": 9}, memory=memory)

    assert [event.type.value for event in inside.events][-1] == "step_completed"
    assert [event.type.value for event in root.events] == ["execution_completed"]


def test_run_that_continues_after_its_end_reopens_but_a_late_span_does_not() -> None:
    memory = Assembler()
    decode(chat_span(2, 1, **NAMED_FIELDS, end=2), agent_span(1, "scout", end=3), memory=memory)

    late_batch = decode(tool_span(5, 1, **NAMED_FIELDS, start=0, end=1), memory=memory)
    later_batch = decode(tool_span(6, 1, **NAMED_FIELDS, start=4, end=5), memory=memory)

    assert [event.type.value for event in late_batch.events] == ["tool_call_completed"]
    assert [event.type.value for event in later_batch.events] == ["execution_started", "tool_call_completed"]


def test_processes_without_an_instance_id_are_distinguished_by_pid() -> None:
    first_id = get_event(decode(chat_span(2, 1), process_pid="1"), "llm_call_completed").incarnation_id
    same_id = get_event(decode(chat_span(2, 1), process_pid="1"), "llm_call_completed").incarnation_id
    other_id = get_event(decode(chat_span(2, 1), process_pid="2"), "llm_call_completed").incarnation_id

    assert first_id == same_id != other_id


def test_repeated_failure_has_the_same_result_hash() -> None:
    """B26: the same tool, arguments and result are a repeat, even if every call fails."""
    spans = [
        tool_span(n, 1, error="no such bee", attributes={"gen_ai.tool.call.arguments": "{}"}) for n in (2, 3)
    ]

    first_call, second_call = (
        event.data for event in decode(*spans).events if event.type == "tool_call_completed"
    )

    assert first_call["outcome"] == "error"
    assert first_call["result_hash"] == second_call["result_hash"] is not None


@pytest.mark.parametrize(
    "placeholder", ["__REDACTED__", "[hidden]", "<REDACTED>", '"__REDACTED__"', "", " ", "{}", "***"]
)
def test_placeholder_is_not_content(placeholder: str) -> None:
    """B87: two hidden values do not count as equal arguments."""
    hidden = {"gen_ai.tool.call.arguments": placeholder, "gen_ai.tool.call.result": placeholder}

    call = get_event(decode(tool_span(2, 1, attributes=hidden)), "tool_call_completed").data

    assert (call["args_hash"], call["result_hash"]) == (None, None)


def test_empty_arguments_are_content_if_the_result_is_recorded() -> None:
    content = {"gen_ai.tool.call.arguments": "{}", "gen_ai.tool.call.result": "three files"}

    call = get_event(decode(tool_span(2, 1, attributes=content)), "tool_call_completed").data

    assert (call["args_hash"], call["result_hash"]) == (fingerprint({}), fingerprint("three files"))


def test_root_does_not_end_a_run_before_records_of_another_scope() -> None:
    """B85: the spans of a request are processed in the order of their times, across scopes."""
    trace_request = make_request(agent_span(1, "scout", end=9), scope="framework")
    client = make_request(chat_span(2, 1, **NAMED_FIELDS, end=3), scope="client")
    trace_request.resource_spans[0].scope_spans.append(client.resource_spans[0].scope_spans[0])

    events = decode_spans(trace_request, Assembler(), NOW).events

    assert [event.type.value for event in events] == [
        "execution_started",
        "llm_call_completed",
        "step_completed",
        "execution_completed",
    ]
    assert {event.agent_id for event in events} == {"scout"}


def test_call_without_recorded_content_has_no_hash() -> None:
    call = get_event(decode(tool_span(2, 1)), "tool_call_completed").data

    assert (call["args_hash"], call["result_hash"]) == (None, None)


@pytest.mark.parametrize(
    ("start", "end", "time_", "duration"),
    [
        (int((NOW - 5) * 1e9), int((NOW - 7) * 1e9), NOW - 5, None),
        (0, int((NOW - 7) * 1e9), NOW - 7, None),
        (1, 2**64 - 1, NOW, None),
        (int((NOW - 7) * 1e9), int((NOW - 5) * 1e9), NOW - 5, 2.0),
    ],
)
def test_impossible_times_are_replaced(start: int, end: int, time_: float, duration: float | None) -> None:
    trace_request = make_request(tool_span(2, 1))
    span = trace_request.resource_spans[0].scope_spans[0].spans[0]
    span.start_time_unix_nano, span.end_time_unix_nano = start, end

    call = get_event(decode_spans(trace_request, Assembler(), NOW), "tool_call_completed")

    assert call.time == pytest.approx(time_, abs=1e-3)
    assert call.data["duration"] == (None if duration is None else pytest.approx(duration))
    assert call.to_dict()["time"]


def test_span_without_an_end_is_open_work() -> None:
    """B89: an end time of zero means open, so that a hang in the first call of a run is found."""
    memory = Assembler()

    result = decode(
        agent_span(1, "scout", **OPEN_FIELDS), tool_span(2, 1, **NAMED_FIELDS, **OPEN_FIELDS), memory=memory
    )
    repeated_batch = decode(tool_span(2, 1, **NAMED_FIELDS, **OPEN_FIELDS), memory=memory)
    ended_batch = decode(tool_span(2, 1, **NAMED_FIELDS, end=5), memory=memory)
    late_batch = decode(tool_span(2, 1, **NAMED_FIELDS, **OPEN_FIELDS), memory=memory)

    assert [event.type.value for event in result.events] == ["execution_started", "tool_call_started"]
    assert "outcome" not in result.events[1].data
    assert [event.type.value for event in ended_batch.events] == ["tool_call_completed"]
    assert ended_batch.events[0].data["call_id"] == result.events[1].data["call_id"]
    assert (repeated_batch.events, late_batch.events) == ([], [])


@pytest.mark.parametrize("kind", [chat_span, tool_span])
def test_call_opened_by_two_libraries_starts_and_ends_once(kind: Any) -> None:
    """B89: the framework's span contains the model client's span. Both are reported when they start."""
    memory = Assembler()
    events = [
        event
        for span in (
            kind(2, 1, **NAMED_FIELDS, **OPEN_FIELDS),
            kind(3, 2, **NAMED_FIELDS, start=1, **OPEN_FIELDS),
            kind(3, 2, **NAMED_FIELDS, end=5),
            kind(2, 1, **NAMED_FIELDS, end=6),
        )
        for event in decode(span, memory=memory).events
    ]

    work = [candidate for candidate in events if candidate.type.value.startswith(("tool", "llm"))]
    assert [candidate.type.value.rsplit("_", 1)[1] for candidate in work] == ["started", "completed"]
    assert len({candidate.data.get("call_id") for candidate in work}) == 1


def test_names_are_bounded_clean_and_distinct() -> None:
    names = ["bee\x00\n\u202e" + "x" * 500 + suffix for suffix in "ab"]

    first_call, second_call = (
        get_event(
            decode(tool_span(2, 1, attributes={"gen_ai.agent.name": index})), "tool_call_completed"
        ).agent_id
        for index in names
    )

    assert first_call != second_call
    assert all(len(name) <= 200 and name.isprintable() for name in (first_call, second_call))


def test_events_are_in_the_order_of_their_times_with_increasing_ids() -> None:
    decoded = decode(chat_span(3, 1, end=5), tool_span(2, 1, end=1), chat_span(4, 1, end=3))

    times, ids = [event.time for event in decoded.events], [event.id for event in decoded.events]
    assert times == sorted(times)
    assert ids == sorted(set(ids))


def test_memory_of_the_assembler_is_bounded() -> None:
    memory = Assembler(max_traces=100)
    for n in range(1, 200):
        decode(chat_span(2, 1, trace=n.to_bytes(16, "big")), memory=memory)
    for n in range(3, 3_000):
        decode(chat_span(n, n, trace=TRACE), memory=memory)

    incarnation = get_event(decode(chat_span(2, 1)), "step_completed").incarnation_id
    trace = memory.traces.find(TRACE, Process("svc", "", incarnation, False))
    assert len(memory.traces) == 100
    assert trace is not None
    assert (len(trace.runs_by_parent), len(trace.work_by_parent)) == (1_024, 1_024)


def test_every_attribute_spelling_is_unique() -> None:
    spellings = [name for names in ATTRIBUTES.values() for name in names]

    assert len(spellings) == len(set(spellings))
