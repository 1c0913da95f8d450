"""The processor of open spans, with the real SDK: which spans are reported, when, and with what."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, Sampler, SamplingResult
from opentelemetry.trace import Span, Status, StatusCode, get_current_span, set_span_in_context

from queenright.instrumentation import conventions, names, open_spans
from queenright.instrumentation.delivery import Delivery
from queenright.instrumentation.drop_counter import DROPPED
from queenright.instrumentation.open_spans import GRACE, INTERVAL, OpenSpans
from queenright.instrumentation.telemetry import StartRecord
from queenright.instrumentation.ticker import MAX_TICK_SECONDS, Ticker
from tests.instrumentation.parts import Memory, eventually

RECORDED: Final[list[dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "open_spans.json").read_text(encoding="utf-8")
)
"""Spans of real libraries at their start and while a call hung, without ids and paths."""

START: Final = 1_800_000_000 * 10**9
CHAT: Final = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o"}
AGENT: Final = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "bee"}


class ManualTicker(Ticker):
    """A ticker without a thread; the test calls ``tick``."""

    joined = 0

    def join(self, member: object) -> None:
        self.joined += 1


class Watch:
    """A tracer whose open spans are watched, a manual clock, and the reports."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.now = START
        self.memory = Memory()
        self.ticker = ManualTicker()
        self.delivery = Delivery(lambda: self.memory, capacity=10**6)
        self.processor = OpenSpans(self.delivery, clock=lambda: self.now, ticker=self.ticker)
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(self.processor)

    def start(
        self,
        name: str,
        attributes: dict[str, Any] | None = None,
        *,
        under: Span | None = None,
        scope: str = "lib",
    ) -> Span:
        context = set_span_in_context(under) if under is not None else None
        tracer = self.provider.get_tracer(scope)
        return tracer.start_span(name, context, attributes=attributes, start_time=self.now)

    def after(self, seconds: float) -> float:
        self.now += int(seconds * 1e9)
        return self.processor.tick()

    def records(self) -> list[StartRecord]:
        assert self.processor.is_closed or self.delivery.flush(60)
        return self.memory.records

    def reported(self) -> list[tuple[str, Any]]:
        return [
            (record.name.removeprefix("queenright.span."), record.attributes[names.OPEN_SPAN_NAME])
            for record in self.records()
        ]


@pytest.fixture
def watch() -> Iterator[Watch]:
    watch = Watch()
    yield watch
    watch.provider.shutdown()


def test_hang_in_the_first_call_is_reported_with_heartbeats(watch: Watch) -> None:
    """B88: the first model call of the first run never ends; nothing was exported so far."""
    run = watch.start("invoke_agent bee", AGENT)
    call = watch.start("chat gpt-4o", CHAT, under=run)
    result = watch.now

    watch.after(GRACE)
    watch.after(INTERVAL)
    watch.after(INTERVAL)

    assert watch.reported() == [
        ("started", "invoke_agent bee"),
        ("started", "chat gpt-4o"),
        ("open", "invoke_agent bee"),
        ("open", "chat gpt-4o"),
        ("open", "invoke_agent bee"),
        ("open", "chat gpt-4o"),
    ]
    started, beat = watch.memory.records[1], watch.memory.records[5]
    assert (started.time_ns, beat.time_ns) == (result, watch.now)
    assert started.span == beat.span == call.get_span_context()
    assert started.attributes == beat.attributes
    assert started.attributes == {
        names.OPEN_SPAN_KIND: "llm",
        names.OPEN_SPAN_NAME: "chat gpt-4o",
        names.OPEN_SPAN_SCOPE: "lib",
        names.OPEN_SPAN_PARENT_ID: f"{run.get_span_context().span_id:016x}",
        names.OPEN_SPAN_START: result,
        names.GEN_AI_REQUEST_MODEL: "gpt-4o",
        names.HEARTBEAT_INTERVAL: INTERVAL,
    }


def test_short_span_is_not_reported(watch: Watch) -> None:
    watch.start("chat gpt-4o", CHAT).end()
    call = watch.start("chat gpt-4o", CHAT)
    watch.after(GRACE / 2)
    call.end()

    watch.after(GRACE)

    assert watch.reported() == []


def test_end_is_reported_with_its_outcome(watch: Watch) -> None:
    good, bad, named = (watch.start(f"chat {name}", CHAT) for name in ("good", "bad", "named"))
    watch.after(GRACE)

    good.end(watch.now + 5)
    bad.record_exception(TimeoutError("after 30 s"))
    bad.set_status(Status(StatusCode.ERROR))
    bad.end()
    named.set_attribute("error.type", "RateLimitError")
    named.set_status(Status(StatusCode.ERROR))
    named.end()

    ends = watch.records()[3:]
    assert [end.name for end in ends] == [names.EVENT_SPAN_ENDED] * 3
    assert [end.attributes[names.OPEN_SPAN_OUTCOME] for end in ends] == ["ok", "error", "error"]
    assert [end.attributes.get(names.ERROR_TYPE) for end in ends] == [None, "TimeoutError", "RateLimitError"]
    assert ends[0].time_ns == watch.now + 5
    assert ends[0].attributes[names.OPEN_SPAN_KIND] == "llm"
    watch.after(INTERVAL)
    assert len(watch.records()) == 6


def test_garbage_collected_span_ends_with_unknown_outcome(watch: Watch) -> None:
    """An abandoned generator or a cancelled task never ends its span, and nothing references the span."""
    watch.start("invoke_agent bee", AGENT)
    hidden = watch.start("chat gpt-4o", CHAT)
    watch.after(GRACE)
    del hidden
    gc.collect()

    watch.after(GRACE)

    lost = watch.records()[-1]
    assert watch.reported().count(("ended", "chat gpt-4o")) == 1
    assert lost.attributes[names.OPEN_SPAN_OUTCOME] == "unknown"
    assert lost.time_ns == watch.now


def test_unreported_lost_span_leaves_no_record(watch: Watch) -> None:
    watch.start("chat gpt-4o", CHAT)
    gc.collect()

    watch.after(GRACE)

    assert watch.reported() == []


def test_open_span_at_shutdown_ends_with_unknown_outcome(watch: Watch) -> None:
    run = watch.start("invoke_agent bee", AGENT)
    watch.after(GRACE)

    watch.provider.shutdown()
    run.end()
    watch.start("invoke_agent late", AGENT)

    assert [record.name for record in watch.memory.records] == [
        names.EVENT_SPAN_STARTED,
        names.EVENT_SPAN_ENDED,
    ]
    assert watch.memory.records[1].attributes[names.OPEN_SPAN_OUTCOME] == "unknown"
    assert watch.after(GRACE) == MAX_TICK_SECONDS


@pytest.mark.parametrize("then", ["look", "shutdown"])
def test_end_is_reported_if_another_processor_raises(watch: Watch, then: str) -> None:
    class Raises(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise RuntimeError("exporter of the application")

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Raises())
    provider.add_span_processor(watch.processor)
    call = provider.get_tracer("lib").start_span("chat gpt-4o", attributes=CHAT, start_time=watch.now)
    watch.after(GRACE)
    with pytest.raises(RuntimeError):
        call.end(watch.now + 7)

    watch.after(GRACE) if then == "look" else watch.processor.shutdown()

    assert watch.reported() == [("started", "chat gpt-4o"), ("ended", "chat gpt-4o")]
    assert watch.memory.records[1].time_ns == START + int(GRACE * 1e9) + 7
    assert watch.memory.records[1].attributes[names.OPEN_SPAN_OUTCOME] == "ok"


def test_span_of_another_kind_is_not_reported(watch: Watch) -> None:
    attributes = [
        watch.start("GET /chat", {"http.request.method": "GET"}),
        watch.start("embeddings ada", {"gen_ai.operation.name": "embeddings"}),
        watch.start(
            "LangGraph", {"openinference.span.kind": "CHAIN"}, scope="openinference.instrumentation.x"
        ),
        watch.start("invoke_agent own", AGENT, scope="queenright.instrumentation"),
    ]

    watch.after(GRACE)
    watch.after(INTERVAL)

    assert len(attributes) == 4
    assert watch.reported() == []


def test_kind_set_later_is_reported_later(watch: Watch) -> None:
    run = watch.start("work")
    watch.after(GRACE)
    run.set_attributes(AGENT)

    watch.after(INTERVAL)

    assert watch.reported() == [("started", "work")]
    assert watch.memory.records[0].attributes[names.OPEN_SPAN_KIND] == "agent"


def test_heartbeat_contains_new_attributes(watch: Watch) -> None:
    run = watch.start("bee", scope="openinference.instrumentation.langchain")
    watch.after(GRACE)
    run.set_attributes({"openinference.span.kind": "AGENT", "agent.name": "bee", "session.id": "s-1"})

    watch.after(INTERVAL)

    started, beat = watch.records()
    assert names.OPEN_SPAN_KIND not in started.attributes
    assert beat.attributes[names.OPEN_SPAN_KIND] == "agent"
    assert beat.attributes[names.GEN_AI_CONVERSATION_ID] == "s-1"


@pytest.mark.parametrize("decision", [Decision.DROP, Decision.RECORD_ONLY])
def test_unsampled_span_is_not_reported(decision: Decision) -> None:
    """Such a span is never exported: the application chose not to record it."""

    class Only(Sampler):
        def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
            return SamplingResult(decision, CHAT)

        def get_description(self) -> str:
            return "Only"

    watch = Watch(ALWAYS_OFF if decision is Decision.DROP else Only())
    call = watch.start("chat gpt-4o", CHAT)
    assert call.is_recording() == (decision is Decision.RECORD_ONLY)

    watch.after(GRACE)
    watch.after(INTERVAL)
    call.end()

    assert watch.reported() == []


def test_parent_is_the_nearest_reported_span(watch: Watch) -> None:
    run = watch.start("invoke_agent bee", AGENT)
    node = watch.start("node", under=run)
    inner = watch.start("task", under=node)
    call = watch.start("chat gpt-4o", CHAT, under=inner)

    watch.after(GRACE)

    assert call.is_recording()
    _, started = watch.records()
    assert started.attributes[names.OPEN_SPAN_PARENT_ID] == f"{run.get_span_context().span_id:016x}"


def test_spans_beyond_the_capacity_are_dropped_and_counted(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_spans, "CAPACITY", 2)
    before = DROPPED.get_count("logs")
    calls = [watch.start(f"chat {number}", CHAT) for number in range(3)]
    assert len(watch.processor._new) == 2
    watch.after(GRACE)

    calls += [watch.start(f"chat {number}", CHAT) for number in range(3, 5)]
    watch.after(GRACE)

    assert len(calls) == 5
    assert watch.reported() == [("started", "chat 0"), ("started", "chat 1")]
    assert DROPPED.get_count("logs") - before == 3


def test_secrets_are_masked(watch: Watch) -> None:
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"
    call = watch.start(
        f"chat {secret}", {**CHAT, "gen_ai.conversation.id": secret, "gen_ai.agent.name": secret}
    )
    watch.after(GRACE)
    call.set_attribute("error.type", secret)
    call.set_status(Status(StatusCode.ERROR))
    call.end()

    assert len(watch.records()) == 2
    assert secret not in str([record.attributes for record in watch.records()])


def test_unreadable_span_does_not_hide_others(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """B81: an internal error about one span loses only that span."""
    read = conventions.classify_span

    def classify_span(operation: str, marker: str, name: str) -> Any:
        if name == "bad":
            raise RuntimeError("unreadable")
        return read(operation, marker, name)

    monkeypatch.setattr(open_spans, "classify_span", classify_span)
    spans = [watch.start("bad", CHAT), watch.start("chat gpt-4o", CHAT)]

    watch.after(GRACE)

    assert len(spans) == 2
    assert watch.reported() == [("started", "chat gpt-4o")]


def test_internal_error_does_not_reach_the_agent(watch: Watch) -> None:
    """B81: after any internal error."""

    class Broken(dict[int, Any]):
        def __setitem__(self, key: int, value: Any) -> None:
            raise RuntimeError("broken")

        def pop(self, *_: Any) -> Any:
            raise RuntimeError("broken")

    watch.processor._new = Broken()

    with watch.provider.get_tracer("lib").start_as_current_span("chat gpt-4o", attributes=CHAT):
        assert get_current_span().is_recording()


def test_flush_of_the_provider_succeeds_if_the_service_is_unreachable(watch: Watch) -> None:
    class Away(Memory):
        def send(self, *_: Any) -> Any:
            raise ConnectionError("away")

    watch.memory = Away()
    call = watch.start("chat gpt-4o", CHAT)
    watch.after(GRACE)

    assert call.is_recording()
    assert watch.provider.force_flush(100)


def test_ticks_become_rare_in_a_process_without_spans(watch: Watch) -> None:
    watch.start("GET /", {}).end()
    assert watch.ticker.joined == 1
    assert [watch.after(GRACE) for _ in range(3)] == [GRACE, MAX_TICK_SECONDS, MAX_TICK_SECONDS]

    call = watch.start("chat gpt-4o", CHAT)

    assert watch.ticker.joined == 2
    assert [watch.after(GRACE) for _ in range(3)] == [GRACE] * 3
    call.end()


def test_short_spans_wake_the_ticker_once(watch: Watch) -> None:
    for _ in range(50):
        watch.start("GET /", {}).end()
        watch.after(GRACE / 50)

    assert watch.ticker.joined == 1


def test_heartbeats_continue_after_the_clock_is_set_back(watch: Watch) -> None:
    call = watch.start("chat gpt-4o", CHAT)
    watch.after(GRACE)

    watch.after(-3600)

    assert call.is_recording()
    assert watch.reported() == [("started", "chat gpt-4o"), ("open", "chat gpt-4o")]


def test_forked_child_leaves_the_open_spans_to_its_parent(watch: Watch) -> None:
    run = watch.start("invoke_agent bee", AGENT)
    watch.after(GRACE)
    read, write = os.pipe()

    child = os.fork()
    if child == 0:
        text = "failed"
        try:
            run.end()
            call = watch.start("chat in child", CHAT)
            watch.after(GRACE)
            text = json.dumps([*watch.reported(), watch.ticker.joined]) if call.is_recording() else text
        finally:
            os.write(write, text.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as result:
        text = json.loads(result.read())
    os.waitpid(child, 0)

    # The child's copy of its parent's earlier records, then its own.
    assert text[-2:] == [["started", "chat in child"], 2]
    assert ["ended", "invoke_agent bee"] not in text
    run.end()
    assert watch.reported() == [("started", "invoke_agent bee"), ("ended", "invoke_agent bee")]


@pytest.mark.parametrize("event", ["started", "open"])
def test_end_while_a_record_is_queued_is_reported_after_it(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    call = watch.start("chat gpt-4o", CHAT)
    put = watch.delivery.put_record

    def end_and_put(record: StartRecord) -> None:
        if record.name == f"queenright.span.{event}" and call.is_recording():
            call.end(START + 7)
        put(record)

    monkeypatch.setattr(watch.delivery, "put_record", end_and_put)

    watch.after(GRACE)
    watch.after(INTERVAL)
    watch.after(GRACE)

    assert [emitted for emitted, _ in watch.reported()] == [
        "started",
        *(["open"] if event == "open" else []),
        "ended",
    ]
    assert watch.memory.records[-1].time_ns == START + 7
    assert watch.memory.records[-1].attributes[names.OPEN_SPAN_OUTCOME] == "ok"


def test_spans_of_many_threads_each_start_and_end_once(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends race with ticks, which report starts and heartbeats; the start comes first and the end last."""
    monkeypatch.setattr(open_spans, "GRACE", 0.0)
    monkeypatch.setattr(open_spans, "INTERVAL", 0.0)
    stop = threading.Event()
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        while not stop.is_set():
            watch.processor.tick()
            ticks += 1

    def work(number: int) -> None:
        for turn in range(200):
            call = watch.start(f"chat {number}.{turn}", CHAT)
            ticks_before_end = ticks
            if turn % 20 == 0:
                assert eventually(lambda: ticks > ticks_before_end + 1, 60)  # noqa: B023
            call.end()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    ticker = threading.Thread(target=tick)
    for thread in [ticker, *threads]:
        thread.start()
    for thread in threads:
        thread.join(60)
    stop.set()
    ticker.join(60)
    watch.processor.tick()

    events_by_name: dict[str, list[str]] = {}
    for event, name in watch.reported():
        events_by_name.setdefault(name, []).append(event)
    for events in events_by_name.values():
        assert events == ["started", *["open"] * (len(events) - 2), "ended"]
    assert len(events_by_name) >= 40
    assert [*watch.processor._new, *watch.processor._undecided_spans, *watch.processor._reports] == []


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["start", "end", "lose", "wait", "beat", "tick", "name"]), st.integers(0, 5)
        ),
        max_size=40,
    )
)
def test_reports_of_a_span_are_one_start_heartbeats_and_one_end(steps: list[tuple[str, int]]) -> None:
    """This holds for any order of starts, ends, lost spans and ticks."""
    watch = Watch()
    spans: dict[int, Span] = {}
    for number, (step, key) in enumerate(steps):
        match step:
            case "start":
                spans[key] = watch.start(f"chat {number}", CHAT if number % 2 else {})
            case "end" if key in spans:
                spans.pop(key).end()
            case "lose":
                spans.pop(key, None)
            case "name" if key in spans:
                spans[key].set_attributes(CHAT)
            case "wait" | "beat":
                watch.after(GRACE if step == "wait" else INTERVAL)
            case _:
                watch.processor.tick()
    spans.clear()
    watch.provider.shutdown()

    events_by_span: dict[int, list[str]] = {}
    for record in watch.memory.records:
        events_by_span.setdefault(record.span.span_id, []).append(
            record.name.removeprefix("queenright.span.")
        )
    for events in events_by_span.values():
        assert events == ["started", *["open"] * (len(events) - 2), "ended"]


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case['library']}: {case['hangs_in']}")
def test_hang_in_the_first_call_of_real_libraries_is_reported(watch: Watch, case: dict[str, Any]) -> None:
    """B88: spans of real libraries while the first model call, or the first tool call, hung."""
    spans: list[Span] = []
    for span in case["spans"]:
        under = spans[span["parent"]] if span["parent"] is not None else None
        spans.append(watch.start(span["name"], span["at_start"], under=under, scope=span["scope"]))
    for span, later in zip(spans, case["spans"], strict=True):
        span.set_attributes(later["later"])

    watch.after(GRACE)

    result = [
        (
            record.attributes.get(names.OPEN_SPAN_KIND, ""),
            record.attributes.get(names.GEN_AI_AGENT_NAME)
            or record.attributes.get(names.GEN_AI_TOOL_NAME)
            or record.attributes[names.OPEN_SPAN_NAME],
        )
        for record in watch.records()
    ]
    assert (
        result
        == EXPECTED[case["library"].split(" ")[0] + "/" + case["library"].split(" ")[-2], case["hangs_in"]]
    )
    actual = json.dumps([dict(record.attributes) for record in watch.records()])
    assert "hive" not in actual  # the tool's arguments
    assert '"hi' not in actual  # the user's prompt


EXPECTED: Final[dict[tuple[str, str], list[tuple[str, str]]]] = {
    ("LangGraph/openinference-instrumentation-langchain", "llm"): [
        ("", "bee_researcher"),
        ("", "model"),
        ("", "ChatOpenAI"),
    ],
    ("LangGraph/openinference-instrumentation-langchain", "tool"): [
        ("", "bee_researcher"),
        ("", "tools"),
        ("", "search"),
    ],
    ("LangGraph/opentelemetry-instrumentation-langchain", "llm"): [
        ("agent", "bee_researcher"),
        ("agent", "bee_researcher"),
        ("llm", "ChatOpenAI.chat"),
    ],
    ("LangGraph/opentelemetry-instrumentation-langchain", "tool"): [
        ("agent", "bee_researcher"),
        ("agent", "bee_researcher"),
        ("tool", "search"),
    ],
    ("openai-agents/openinference-instrumentation-openai-agents", "llm"): [
        ("agent", "Agent workflow"),
        ("agent", "bee_researcher"),
        ("llm", "response"),
    ],
    ("openai-agents/openinference-instrumentation-openai-agents", "tool"): [
        ("agent", "Agent workflow"),
        ("agent", "bee_researcher"),
        ("tool", "search"),
    ],
    ("openai-agents/logfire", "llm"): [("agent", "bee_researcher"), ("llm", "Responses API with gpt-4o")],
    ("openai-agents/logfire", "tool"): [("agent", "bee_researcher"), ("tool", "search")],
    ("pydantic-ai/pydantic-ai", "llm"): [("agent", "bee_researcher"), ("llm", "bee_researcher")],
    ("pydantic-ai/pydantic-ai", "tool"): [("agent", "bee_researcher"), ("tool", "bee_researcher")],
    ("anthropic/opentelemetry-instrumentation-anthropic", "llm"): [
        ("llm", "anthropic.chat"),
        ("llm", "anthropic.messages.create"),
    ],
}
"""Kind and owner of each record."""
