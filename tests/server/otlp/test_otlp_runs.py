"""The run that a span belongs to, its name and its end."""

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
    chat,
    decode,
    get_event,
    invoke,
    request,
    tool,
    workers,
)

ENDS = (EventType.EXECUTION_COMPLETED, EventType.EXECUTION_FAILED)


def event_types(events: Iterable[AgentEvent]) -> list[str]:
    return [event.type.value for event in events]


def decode_in_sequence(
    *batches: list[dict[str, Any]], delay: float = 0.0, **resource: str
) -> list[AgentEvent]:
    """Return the events of requests that arrive in sequence, including those held back."""
    memory, events = Assembler(), list[AgentEvent]()
    for spans in batches:
        events += decode(*spans, memory=memory, **resource).events
    held = decode_spans(request(), memory, NOW + delay)
    return events + held.events


def test_name_that_arrives_late_renames_the_run() -> None:
    """B86: the rename comes before other events under the new name."""
    events = decode_in_sequence([chat(2, 1, end=1)], [chat(3, 1, end=2), invoke(1, "scout", start=-1, end=3)])

    renamed, named = (event for event in events if event.type is EventType.AGENT_RENAMED)
    place = events.index(renamed)
    new = {"agent_id": "scout", "session_id": TRACE.hex()}
    former = {"former_agent_id": "svc", "former_session_id": TRACE.hex()}
    assert (renamed.agent_id, renamed.data) == ("svc", new)
    assert (named.agent_id, named.data) == ("scout", new | former)
    assert {event.agent_id for event in events[: place + 1]} == {"svc"}
    assert {event.agent_id for event in events[place + 1 :]} == {"scout"}


def test_late_conversation_id_renames_the_session() -> None:
    """B86: this does not start a second run."""
    conversation = {"gen_ai.conversation.id": "c-1"}
    events = decode_in_sequence([chat(2, 1, end=1)], [chat(3, 1, end=2, attributes=conversation)])

    assert workers(events) == {("svc", "c-1")}


def test_outer_agent_names_the_run() -> None:
    """B86: instrumentations put their own name on the calls of any agent."""
    inner = {"gen_ai.agent.name": "SDK agent"}
    helper = invoke(4, "helper", parent=1, start=1, end=2)
    events = decode_in_sequence(
        [chat(2, 1, start=0, end=1, attributes=inner)], [helper], [invoke(1, "scout", start=-1, end=3)]
    )

    assert {agent for agent, _ in workers(events)} == {"scout"}
    assert event_types(events).count("execution_completed") == 1


def test_next_run_of_a_process_starts_with_the_last_name() -> None:
    """B86: this applies if all its earlier runs with the same first name ended with one name."""
    other, third = bytes(15) + b"2", bytes(15) + b"3"
    first = [chat(2, 1, end=1)], [invoke(1, "scout", start=-1, end=3)]
    events = decode_in_sequence(*first, [chat(5, 4, trace=other, start=5, end=6)])
    assert ("scout", other.hex()) in workers(events)

    last = [invoke(4, "porter", trace=other, start=4, end=7)], [chat(8, 7, trace=third, start=9, end=10)]
    events = decode_in_sequence(*first, [chat(5, 4, trace=other, start=5, end=6)], *last)
    assert workers(events) == {("scout", TRACE.hex()), ("porter", other.hex()), ("svc", third.hex())}


def test_unstored_renames_are_reverted() -> None:
    """B86: the client repeats the request, and the rename is reported again."""
    memory = Assembler()
    decode(chat(2, 1, end=1), memory=memory)
    batch = decode_spans(request(invoke(1, "scout", start=-1, end=3)), memory, NOW)
    memory.duplicates.finish_storing(batch.identities, is_stored=False)
    batch.undo()

    repeated = decode(invoke(1, "scout", start=-1, end=3), memory=memory)

    assert event_types(repeated.events) == ["agent_renamed", "agent_renamed", "execution_completed"]


def lone_call(id_: int, start: float, end: float, **fields: Any) -> dict[str, Any]:
    """Return a model call in a trace of its own."""
    call = chat(id_, 0, start=start, end=end, trace=bytes(15) + bytes([id_]), **fields)
    del call["parent"]
    return call


def test_consecutive_calls_of_a_process_are_one_run() -> None:
    """B86: some libraries open a trace per call; the run ends a minute after the last."""
    batches = [lone_call(1, 0, 1)], [lone_call(2, 2, 3)], [lone_call(3, 40, 41)]

    assert len(workers(decode_in_sequence(*batches))) == 1
    assert "execution_completed" not in event_types(decode_in_sequence(*batches, delay=30))
    assert event_types(decode_in_sequence(*batches, delay=90)).count("execution_completed") == 1


def test_concurrent_or_distant_calls_are_separate_runs() -> None:
    """B86: a run makes its calls one after the other."""
    assert len(workers(decode_in_sequence([lone_call(1, 0, 2), lone_call(2, 1, 3)]))) == 2
    assert len(workers(decode_in_sequence([lone_call(1, -90, -89)], [lone_call(2, 0, 1)]))) == 2
    assert len(workers(decode_in_sequence([lone_call(1, 0, 1)], [lone_call(2, 2, 3)], host_name="a"))) == 1


def test_concurrent_traces_without_a_session_are_separate_runs() -> None:
    """B86: each trace is a session."""
    other = bytes(15) + b"2"
    events = decode_in_sequence(
        [chat(2, 1, end=1), chat(3, 9, trace=other, end=1)],
        [chat(4, 1, end=2), chat(5, 9, trace=other, end=2)],
    )

    assert workers(events) == {("svc", TRACE.hex()), ("svc", other.hex())}


def test_call_reported_by_two_libraries_counts_once() -> None:
    """B84: even if each trace has one call and the libraries count tokens differently."""
    ids = {"gen_ai.response.id": "r-1"}
    first, other = (
        lone_call(n, 0, 1, scope=f"library-{n}", attributes=ids | {"gen_ai.usage.output_tokens": 20 + n})
        for n in (1, 2)
    )

    events = decode_in_sequence([first, other], [first, other])

    assert event_types(events).count("llm_call_completed") == 1
    assert len(workers(events)) == 1


def messages(*results: int, calls: int = 0) -> dict[str, str]:
    """Return the content of a model call: input that ends with results, and output that makes calls."""
    question = [
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": f"c-{n}", "response": f"r{n}"}]}
        for n in results
    ]
    part = {"type": "tool_call", "id": f"c-{calls}", "name": "search", "arguments": {"n": calls}}
    answer = [{"role": "assistant", "parts": [part] if calls else [{"type": "text", "content": "done"}]}]
    return {"gen_ai.input.messages": json.dumps(question), "gen_ai.output.messages": json.dumps(answer)}


CONVERSATION = [
    chat(2, 1, start=0, end=1, attributes=messages(calls=1)),
    chat(3, 1, start=2, end=3, attributes=messages(1, calls=2)),
    chat(4, 1, start=4, end=5, attributes=messages(1, 2)),
]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_tool_calls_without_spans_come_from_messages(order: tuple[int, ...]) -> None:
    """B84: each call counts once, in any order of the model calls, even if a result is sent repeatedly."""
    events = decode_in_sequence(*([CONVERSATION[n]] for n in order), delay=20)

    found = [
        (e.data["tool"], e.data["call_id"], e.data["args_hash"], e.data["result_hash"])
        for e in events
        if e.type == "tool_call_completed"
    ]
    expected = [("search", f"c-{n}", fingerprint({"n": n}), fingerprint(f"r{n}")) for n in (1, 2)]
    assert sorted(found) == expected


def user_question(tool_name: str, **arguments: object) -> dict[str, str]:
    part = {"type": "tool_call", "id": "c-1", "name": tool_name, "arguments": arguments}
    return {"gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [part]}])}


@pytest.mark.parametrize(
    ("name", "arguments", "question"),
    [
        ("ask_user", {"question": "Which hive?"}, "Which hive?"),
        ("functions.get_user_input", {"prompt": "Which hive?"}, "Which hive?"),
        ("AskUserQuestion", {"questions": [{"question": "Which?"}, {"question": "Why?"}]}, "Which? Why?"),
        ("ask_human", {}, "ask_human"),
    ],
)
def test_question_tool_call_is_a_wait_for_the_user(
    name: str, arguments: dict[str, Any], question: str
) -> None:
    memory = Assembler()
    decoded = decode(chat(2, 1, end=1, attributes=user_question(name, **arguments)), memory=memory)
    late = decode(chat(4, 1, end=0.5, attributes=user_question(name, **arguments)), memory=memory)

    waiting = get_event(decoded, "worker_waiting")
    assert waiting.data == {"reason": "user_input", "question": question}
    assert decoded.events[-1] is waiting
    assert "worker_waiting" not in event_types(late.events)


def test_answer_to_a_question_tool_call_ends_the_wait() -> None:
    monitor, memory = HealthMonitor(HealthSettings()), Assembler()

    def waiting_after(*spans: dict[str, Any]) -> tuple[str | None, str]:
        for event in decode(*spans, memory=memory).events:
            monitor.apply(event, NOW)
        [worker] = monitor.workers()
        return worker.vitals.waiting, worker.vitals.question

    waiting = waiting_after(chat(2, 1, end=1, attributes=user_question("ask_user", question="Which?")))
    answered = waiting_after(chat(3, 1, start=600, end=601))

    assert (waiting, answered) == (("user_input", "Which?"), (None, ""))


def test_tool_calls_with_spans_are_not_counted_again_from_messages() -> None:
    """B84: a span may arrive after the messages that contain its call."""
    spans = [
        tool(n + 4, 1, start=2 * n - 1, end=2 * n, attributes={"gen_ai.tool.call.id": f"c-{n}"})
        for n in (1, 2)
    ]
    for batches in ([CONVERSATION, spans], [spans, CONVERSATION], [[*CONVERSATION, *spans]]):
        assert event_types(decode_in_sequence(*batches, delay=20)).count("tool_call_completed") == 2


def test_late_tool_span_is_not_counted_again() -> None:
    """B84: exporters retry for minutes."""
    memory = Assembler()
    decode(*CONVERSATION, memory=memory)
    result = decode_spans(request(), memory, NOW + 20)
    late = decode(tool(5, 1, start=1, end=2, attributes={"gen_ai.tool.call.id": "c-1"}), memory=memory)

    assert event_types([*result.events, *late.events]).count("tool_call_completed") == 2


def test_late_records_correct_the_outcome() -> None:
    """B84: the last model call failed, and is reported after the root."""
    root = {"id": 1, "name": "workflow", "start": -1, "end": 9}
    events = decode_in_sequence([chat(2, 1, end=1)], [root], [chat(3, 1, end=8, error="overloaded")])

    ended = [event for event in events if event.type in ENDS]
    assert [event.type.value for event in ended] == ["execution_completed", "execution_failed"]
    assert {event.time for event in ended} == {ended[0].time}


def test_root_arriving_first_ends_the_run() -> None:
    """B85: work inside the run still counts."""
    root = {"id": 1, "name": "workflow", "start": -1, "end": 9}

    events = decode_in_sequence([root], [chat(2, 1, end=1)], [chat(3, 1, end=2)])

    assert event_types(events) == [
        *("execution_started", "llm_call_completed", "step_completed", "execution_completed"),
        *("llm_call_completed", "step_completed"),
    ]


def test_agent_inside_a_missing_span_ends_after_a_minute() -> None:
    """B88: a collector may drop the spans around agents."""
    spans = [chat(3, 2, end=1), invoke(2, "scout", parent=1, start=0, end=2)]

    assert "execution_completed" not in event_types(decode_in_sequence(spans, delay=30))
    assert event_types(decode_in_sequence(spans, delay=90))[-1] == "execution_completed"
    assert "execution_completed" not in event_types(
        decode_in_sequence(spans, [chat(4, 1, start=30, end=31)], delay=90)
    )


@pytest.mark.parametrize("is_named_late", [False, True])
def test_agent_is_not_stalled_while_an_agent_that_it_called_in_another_process_works(
    is_named_late: bool,
) -> None:
    memory, monitor = Assembler(), HealthMonitor(HealthSettings())

    def take(at: float, *spans: dict[str, Any], service: str) -> None:
        batch = decode_spans(request(*spans, service=service, service_instance_id=service), memory, NOW + at)
        for event in batch.events:
            monitor.apply(event, NOW + at)
        memory.duplicates.finish_storing(batch.identities, is_stored=True)
        monitor.advance(NOW + at + 1)

    name = {"gen_ai.agent.name": "lead" if not is_named_late else ""}
    take(0.0, chat(2, 1, start=90.0, end=99.0, attributes=name), service="front")
    for minute in range(1, 40):
        at = 60.0 * minute
        named = {"gen_ai.agent.name": "scout"} if minute > 2 or not is_named_late else {}
        span = chat(100 + minute, 9, start=100.0 + at - 50.0, end=100.0 + at - 1, attributes=named)
        take(at, span, service="back")

    known = {worker.vitals.agent_id: worker for worker in monitor.workers()}
    assert sorted(known) == ["front" if is_named_late else "lead", "scout"]
    assert "stall" not in {finding.kind for worker in known.values() for finding in worker.findings}


@pytest.mark.parametrize("name", [".", "..", "\u3164"])
def test_unusable_agent_name_is_not_a_name(name: str) -> None:
    """Heartbeats reject these names, and a URL path cannot contain them."""
    assert workers(decode_in_sequence([chat(2, 1, end=1)], [invoke(1, name, start=-1, end=3)])) == {
        ("svc", TRACE.hex())
    }
    resource: dict[str, Any] = {"service.name": name}
    assert workers(decode(chat(2, 1, end=1), **resource).events) == {("unknown_service", TRACE.hex())}
