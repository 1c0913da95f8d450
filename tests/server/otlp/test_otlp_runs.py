"""The run that a span belongs to, its name, and its end."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.instrumentation import fingerprint
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.otlp.decode import decode_spans
from queenright.server.telemetry.assembler import Assembler
from tests.server.otlp.framework_spans import (
    NOW,
    TRACE,
    agent_span,
    chat_span,
    decode,
    get_event,
    list_workers,
    make_request,
    tool_span,
)

END_TYPES = (EventType.EXECUTION_COMPLETED, EventType.EXECUTION_FAILED)


def list_event_types(events: Iterable[AgentEvent]) -> list[str]:
    return [event.type.value for event in events]


def decode_in_sequence(
    *batches: list[dict[str, Any]], delay: float = 0.0, **resource: str
) -> list[AgentEvent]:
    """Return the events of requests that arrive in sequence, including those that are held back."""
    memory, events = Assembler(), list[AgentEvent]()
    for spans in batches:
        events += decode(*spans, memory=memory, **resource).events
    late_batch = decode_spans(make_request(), memory, NOW + delay)
    return events + late_batch.events


def test_name_that_arrives_late_renames_the_run() -> None:
    """B86: the rename precedes the other events under the new name."""
    events = decode_in_sequence(
        [chat_span(2, 1, end=1)], [chat_span(3, 1, end=2), agent_span(1, "scout", start=-1, end=3)]
    )

    rename_event, named_event = (event for event in events if event.type is EventType.AGENT_RENAMED)
    index = events.index(rename_event)
    new_name = {"agent_id": "scout", "session_id": TRACE.hex()}
    old_name = {"former_agent_id": "svc", "former_session_id": TRACE.hex()}
    assert (rename_event.agent_id, rename_event.data) == ("svc", new_name)
    assert (named_event.agent_id, named_event.data) == ("scout", new_name | old_name)
    assert {event.agent_id for event in events[: index + 1]} == {"svc"}
    assert {event.agent_id for event in events[index + 1 :]} == {"scout"}


def test_late_conversation_id_renames_the_session_of_the_run() -> None:
    """B86: it does not start a second run."""
    conversation = {"gen_ai.conversation.id": "c-1"}
    events = decode_in_sequence([chat_span(2, 1, end=1)], [chat_span(3, 1, end=2, attributes=conversation)])

    assert list_workers(events) == {("svc", "c-1")}


def test_outer_agent_names_the_run() -> None:
    """B86: some instrumentations put their own name on the calls of every agent."""
    inner = {"gen_ai.agent.name": "SDK agent"}
    helper = agent_span(4, "helper", parent=1, start=1, end=2)
    events = decode_in_sequence(
        [chat_span(2, 1, start=0, end=1, attributes=inner)],
        [helper],
        [agent_span(1, "scout", start=-1, end=3)],
    )

    assert {agent for agent, _ in list_workers(events)} == {"scout"}
    assert list_event_types(events).count("execution_completed") == 1


def test_next_run_of_a_process_starts_with_the_last_name() -> None:
    """
    B86: this applies if all earlier runs of the process with the same first name ended with the same name.
    """
    second_trace, third_trace = bytes(15) + b"2", bytes(15) + b"3"
    first_run = [chat_span(2, 1, end=1)], [agent_span(1, "scout", start=-1, end=3)]
    events = decode_in_sequence(*first_run, [chat_span(5, 4, trace=second_trace, start=5, end=6)])
    assert ("scout", second_trace.hex()) in list_workers(events)

    last_runs = (
        [agent_span(4, "porter", trace=second_trace, start=4, end=7)],
        [chat_span(8, 7, trace=third_trace, start=9, end=10)],
    )
    events = decode_in_sequence(*first_run, [chat_span(5, 4, trace=second_trace, start=5, end=6)], *last_runs)
    assert list_workers(events) == {
        ("scout", TRACE.hex()),
        ("porter", second_trace.hex()),
        ("svc", third_trace.hex()),
    }


def test_renames_that_were_not_stored_are_reverted() -> None:
    """B86: the client sends the request again, and the rename is reported again."""
    memory = Assembler()
    decode(chat_span(2, 1, end=1), memory=memory)
    batch = decode_spans(make_request(agent_span(1, "scout", start=-1, end=3)), memory, NOW)
    memory.duplicates.finish_storing(batch.identities, is_stored=False)
    batch.undo()

    repeated_batch = decode(agent_span(1, "scout", start=-1, end=3), memory=memory)

    assert list_event_types(repeated_batch.events) == [
        "agent_renamed",
        "agent_renamed",
        "execution_completed",
    ]


def make_single_call(id_: int, start_time: float, end_time: float, **fields: Any) -> dict[str, Any]:
    """Return a model call that is alone in its trace."""
    call = chat_span(id_, 0, start=start_time, end=end_time, trace=bytes(15) + bytes([id_]), **fields)
    del call["parent"]
    return call


def test_consecutive_calls_of_a_process_are_one_run() -> None:
    """B86: some libraries open a trace per call. The run ends a minute after the last call."""
    batches = [make_single_call(1, 0, 1)], [make_single_call(2, 2, 3)], [make_single_call(3, 40, 41)]

    assert len(list_workers(decode_in_sequence(*batches))) == 1
    assert "execution_completed" not in list_event_types(decode_in_sequence(*batches, delay=30))
    assert list_event_types(decode_in_sequence(*batches, delay=90)).count("execution_completed") == 1


def test_concurrent_or_distant_calls_are_separate_runs() -> None:
    """B86: the calls of a run are sequential."""
    assert len(list_workers(decode_in_sequence([make_single_call(1, 0, 2), make_single_call(2, 1, 3)]))) == 2
    assert (
        len(list_workers(decode_in_sequence([make_single_call(1, -90, -89)], [make_single_call(2, 0, 1)])))
        == 2
    )
    assert (
        len(
            list_workers(
                decode_in_sequence([make_single_call(1, 0, 1)], [make_single_call(2, 2, 3)], host_name="a")
            )
        )
        == 1
    )


def test_concurrent_traces_without_a_session_are_separate_runs() -> None:
    """B86: each trace is a session."""
    second_trace = bytes(15) + b"2"
    events = decode_in_sequence(
        [chat_span(2, 1, end=1), chat_span(3, 9, trace=second_trace, end=1)],
        [chat_span(4, 1, end=2), chat_span(5, 9, trace=second_trace, end=2)],
    )

    assert list_workers(events) == {("svc", TRACE.hex()), ("svc", second_trace.hex())}


def test_call_reported_by_two_libraries_counts_once() -> None:
    """B84: this applies even if each call has its own trace and the libraries count tokens differently."""
    ids = {"gen_ai.response.id": "r-1"}
    first_calls, second_calls = (
        make_single_call(
            number,
            0,
            1,
            scope=f"library-{number}",
            attributes=ids | {"gen_ai.usage.output_tokens": 20 + number},
        )
        for number in (1, 2)
    )

    events = decode_in_sequence([first_calls, second_calls], [first_calls, second_calls])

    assert list_event_types(events).count("llm_call_completed") == 1
    assert len(list_workers(events)) == 1


def make_messages(*results: int, calls: int = 0) -> dict[str, str]:
    """Return the content of a model call, whose input ends with results, and whose output makes calls."""
    question = [
        {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": f"c-{number}", "response": f"r{number}"}],
        }
        for number in results
    ]
    call_part = {"type": "tool_call", "id": f"c-{calls}", "name": "search", "arguments": {"n": calls}}
    answer = [{"role": "assistant", "parts": [call_part] if calls else [{"type": "text", "content": "done"}]}]
    return {"gen_ai.input.messages": json.dumps(question), "gen_ai.output.messages": json.dumps(answer)}


CONVERSATION = [
    chat_span(2, 1, start=0, end=1, attributes=make_messages(calls=1)),
    chat_span(3, 1, start=2, end=3, attributes=make_messages(1, calls=2)),
    chat_span(4, 1, start=4, end=5, attributes=make_messages(1, 2)),
]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_tool_calls_without_spans_are_read_from_messages(order: tuple[int, ...]) -> None:
    """B84: each call counts once, in any order of the model calls, even if a result is sent repeatedly."""
    events = decode_in_sequence(*([CONVERSATION[number]] for number in order), delay=20)

    found_calls = [
        (event.data["tool"], event.data["call_id"], event.data["args_hash"], event.data["result_hash"])
        for event in events
        if event.type == "tool_call_completed"
    ]
    expected_calls = [
        ("search", f"c-{number}", fingerprint({"n": number}), fingerprint(f"r{number}")) for number in (1, 2)
    ]
    assert sorted(found_calls) == expected_calls


def make_user_question(tool_name: str, **arguments: object) -> dict[str, str]:
    call_part = {"type": "tool_call", "id": "c-1", "name": tool_name, "arguments": arguments}
    return {"gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [call_part]}])}


@pytest.mark.parametrize(
    ("name", "arguments", "question"),
    [
        ("ask_user", {"question": "Which hive?"}, "Which hive?"),
        ("functions.get_user_input", {"prompt": "Which hive?"}, "Which hive?"),
        ("AskUserQuestion", {"questions": [{"question": "Which?"}, {"question": "Why?"}]}, "Which? Why?"),
        ("ask_human", {}, "ask_human"),
    ],
)
def test_question_tool_call_waits_for_the_user(name: str, arguments: dict[str, Any], question: str) -> None:
    memory = Assembler()
    decoded = decode(chat_span(2, 1, end=1, attributes=make_user_question(name, **arguments)), memory=memory)
    late_batch = decode(
        chat_span(4, 1, end=0.5, attributes=make_user_question(name, **arguments)), memory=memory
    )

    waiting_event = get_event(decoded, "worker_waiting")
    assert waiting_event.data == {"reason": "user_input", "question": question}
    assert decoded.events[-1] is waiting_event
    assert "worker_waiting" not in list_event_types(late_batch.events)


def test_response_to_a_question_tool_call_ends_the_wait() -> None:
    monitor, memory = HealthMonitor(HealthSettings()), Assembler()

    def find_waiting_reason(*spans: dict[str, Any]) -> tuple[str | None, str]:
        for event in decode(*spans, memory=memory).events:
            monitor.apply(event, NOW)
        [worker] = monitor.workers()
        return worker.vitals.waiting, worker.vitals.question

    open_wait = find_waiting_reason(
        chat_span(2, 1, end=1, attributes=make_user_question("ask_user", question="Which?"))
    )
    answered_wait = find_waiting_reason(chat_span(3, 1, start=600, end=601))

    assert (open_wait, answered_wait) == (("user_input", "Which?"), (None, ""))


def test_tool_calls_with_spans_are_not_counted_again_from_messages() -> None:
    """B84: a span may arrive after the messages that contain its call."""
    spans = [
        tool_span(
            number + 4,
            1,
            start=2 * number - 1,
            end=2 * number,
            attributes={"gen_ai.tool.call.id": f"c-{number}"},
        )
        for number in (1, 2)
    ]
    for batches in ([CONVERSATION, spans], [spans, CONVERSATION], [[*CONVERSATION, *spans]]):
        assert list_event_types(decode_in_sequence(*batches, delay=20)).count("tool_call_completed") == 2


def test_late_tool_span_is_not_counted_again() -> None:
    """B84: exporters retry for minutes."""
    memory = Assembler()
    decode(*CONVERSATION, memory=memory)
    result = decode_spans(make_request(), memory, NOW + 20)
    late_batch = decode(
        tool_span(5, 1, start=1, end=2, attributes={"gen_ai.tool.call.id": "c-1"}), memory=memory
    )

    assert list_event_types([*result.events, *late_batch.events]).count("tool_call_completed") == 2


def test_late_spans_correct_the_outcome_of_a_run() -> None:
    """B84: the last model call failed, and is reported after the root span."""
    root = {"id": 1, "name": "workflow", "start": -1, "end": 9}
    events = decode_in_sequence(
        [chat_span(2, 1, end=1)], [root], [chat_span(3, 1, end=8, error="overloaded")]
    )

    end_events = [event for event in events if event.type in END_TYPES]
    assert [event.type.value for event in end_events] == ["execution_completed", "execution_failed"]
    assert {event.time for event in end_events} == {end_events[0].time}


def test_root_span_that_arrives_first_ends_the_run() -> None:
    """B85: work inside the run still counts when it arrives."""
    root = {"id": 1, "name": "workflow", "start": -1, "end": 9}

    events = decode_in_sequence([root], [chat_span(2, 1, end=1)], [chat_span(3, 1, end=2)])

    assert list_event_types(events) == [
        *("execution_started", "llm_call_completed", "step_completed", "execution_completed"),
        *("llm_call_completed", "step_completed"),
    ]


def test_agent_inside_a_missing_span_ends_after_a_minute() -> None:
    """B88: a collector may drop the spans around an agent."""
    spans = [chat_span(3, 2, end=1), agent_span(2, "scout", parent=1, start=0, end=2)]

    assert "execution_completed" not in list_event_types(decode_in_sequence(spans, delay=30))
    assert list_event_types(decode_in_sequence(spans, delay=90))[-1] == "execution_completed"
    assert "execution_completed" not in list_event_types(
        decode_in_sequence(spans, [chat_span(4, 1, start=30, end=31)], delay=90)
    )


@pytest.mark.parametrize("is_named_late", [False, True])
def test_agent_is_not_stalled_while_an_agent_that_it_called_in_another_process_works(
    is_named_late: bool,
) -> None:
    memory, monitor = Assembler(), HealthMonitor(HealthSettings())

    def ingest_spans(seconds: float, *spans: dict[str, Any], service: str) -> None:
        batch = decode_spans(
            make_request(*spans, service=service, service_instance_id=service), memory, NOW + seconds
        )
        for event in batch.events:
            monitor.apply(event, NOW + seconds)
        memory.duplicates.finish_storing(batch.identities, is_stored=True)
        monitor.advance(NOW + seconds + 1)

    name = {"gen_ai.agent.name": "lead" if not is_named_late else ""}
    ingest_spans(0.0, chat_span(2, 1, start=90.0, end=99.0, attributes=name), service="front")
    for minute in range(1, 40):
        seconds = 60.0 * minute
        name_attributes = {"gen_ai.agent.name": "scout"} if minute > 2 or not is_named_late else {}
        span = chat_span(
            100 + minute, 9, start=100.0 + seconds - 50.0, end=100.0 + seconds - 1, attributes=name_attributes
        )
        ingest_spans(seconds, span, service="back")

    workers_by_agent = {worker.vitals.agent_id: worker for worker in monitor.workers()}
    assert sorted(workers_by_agent) == ["front" if is_named_late else "lead", "scout"]
    assert "stall" not in {
        finding.kind for worker in workers_by_agent.values() for finding in worker.findings
    }


@pytest.mark.parametrize("name", [".", "..", "\u3164"])
def test_unusable_agent_name_is_ignored(name: str) -> None:
    """Heartbeats reject these names, and a URL path cannot contain them."""
    assert list_workers(
        decode_in_sequence([chat_span(2, 1, end=1)], [agent_span(1, name, start=-1, end=3)])
    ) == {("svc", TRACE.hex())}
    resource: dict[str, Any] = {"service.name": name}
    assert list_workers(decode(chat_span(2, 1, end=1), **resource).events) == {
        ("unknown_service", TRACE.hex())
    }
