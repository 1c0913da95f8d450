"""The bus, the spans and the step log of the reporter contain the same facts."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queenright.health.monitoring.steplog import StepLogReader
from queenright.health.settings import HealthSettings
from queenright.health.vitals.vital_signs import VitalSigns
from queenright.health.vitals.vital_state import VitalState
from queenright.instrumentation import Telemetry, names
from queenright.instrumentation.names import WaitingReason
from queenright.instrumentation.steplog import get_step_log_path
from queenright.instrumentation.verdict import Verdict
from queenright.runtime.bus import EventBus
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.llm.model import ModelReply
from queenright.runtime.nodes.node_judge import FunctionJudge, Judgement, Turn
from queenright.runtime.nodes.reporting import Reporter
from queenright.runtime.tooling.tools import Tool
from tests.instrumentation.parts import Memory
from tests.runtime.conftest import FakeTime, ScriptedModel
from tests.runtime.node_parts import LOOK, Bench, Place, call_reply, output_reply

MIRRORED_TYPES = (EventType.TOOL_CALL_COMPLETED, EventType.LLM_CALL_COMPLETED, EventType.STEP_COMPLETED)


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def telemetry(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Telemetry]:
    # The step log has the text for the model only if content capture is on.
    monkeypatch.setenv(names.CAPTURE_CONTENT_ENV, "true")
    telemetry = Telemetry(connect=lambda: memory)
    yield telemetry
    telemetry.close()


class EmptyLog:
    async def history(self, **filters: Any) -> list[AgentEvent]:
        return []


async def dig(arguments: Place) -> str:
    await asyncio.Event().wait()
    raise AssertionError


def judge(turn: Turn) -> Judgement:
    if turn.outputs["verdict"] == "draft":
        return Judgement(Verdict.RETRY, "Say more, and never password=hunter2.")
    return Judgement(Verdict.ACCEPT, "Well done.")


async def run_visit(path: Path, time: FakeTime, telemetry: Telemetry) -> Bench:
    """Run a visit with failures, repeated calls, a timeout and a retry, and return its bench."""
    model = ScriptedModel(
        [
            call_reply(("look", '{"place": "hive"}'), ("look", '{"place": "void"}'), ("fly", "{}")),
            call_reply(("look", '{ "place":"hive" }')),
            call_reply(("dig", '{"place": "hive"}'), ("look", "{not json")),
            output_reply(verdict="draft"),
            output_reply(verdict="final"),
        ]
    )
    tools = [LOOK, Tool("dig", "Dig.", Place, dig, timeout_seconds=30)]
    bench = Bench(
        path / "n",
        model,
        time,
        tools=tools,
        judge=FunctionJudge(judge),
        telemetry=telemetry,
        storage=path,
    )
    with bench.worker:
        run = asyncio.create_task(bench.run())
        await time.advance(60)
        assert (await run).outcome == "done"
    return bench


def extract_facts(event: AgentEvent) -> tuple[Any, ...]:
    # Rows of the step log have no model, and therefore no price.
    omitted = ("duration", "model", "cost_usd")
    data = {key: value for key, value in event.data.items() if key not in omitted}
    is_model_call = event.type is EventType.LLM_CALL_COMPLETED
    return (
        event.type,
        # A row of the step log is a step, so it has no times or spans of model calls.
        round(event.time, 3) if not is_model_call else 0,
        event.agent_id,
        event.session_id,
        event.incarnation_id,
        event.graph_id,
        event.node_id,
        event.trace_id,
        event.span_id if not is_model_call else "",
        data,
    )


def list_facts(events: list[AgentEvent], type_: EventType) -> list[tuple[Any, ...]]:
    return [extract_facts(event) for event in events if event.type is type_]


async def test_bus_and_step_log_agree(tmp_path: Path, fake_time: FakeTime, telemetry: Telemetry) -> None:
    bench = await run_visit(tmp_path, fake_time, telemetry)
    logged_events = StepLogReader(get_step_log_path(tmp_path, "s1")).read()

    for type_ in MIRRORED_TYPES:
        assert list_facts(bench.events, type_) == list_facts(logged_events, type_)
    calls = list_facts(logged_events, EventType.TOOL_CALL_COMPLETED)
    assert Counter(call[-1]["outcome"] for call in calls) == {"ok": 4, "error": 3, "timeout": 1}
    look_calls = [call[-1] for call in calls if call[-1]["tool"] == "look" and call[-1]["outcome"] == "ok"]
    assert [call["args_hash"] for call in look_calls] == [look_calls[0]["args_hash"]] * 2
    assert [call["result_hash"] for call in look_calls] == [look_calls[0]["result_hash"]] * 2
    assert "hunter2" not in str([extract_facts(event) for event in bench.events])


async def test_vitals_agree_between_bus_and_telemetry(
    tmp_path: Path, fake_time: FakeTime, telemetry: Telemetry
) -> None:
    bench = await run_visit(tmp_path, fake_time, telemetry)
    logged_events = StepLogReader(get_step_log_path(tmp_path, "s1")).read()

    def compute_vitals(events: list[AgentEvent]) -> dict[str, Any]:
        vitals = VitalSigns("bee", "s1", events[0].time, HealthSettings())
        for event in sorted(events, key=lambda event: event.time):
            vitals.apply(event, event.time)
        omitted = ("calls", "clock_base", "model", "cost_usd", "source", "unpriced_tokens")
        return {
            name: getattr(vitals, name)
            for name in VitalState.__slots__
            if not name.startswith("_") and name not in omitted
        }

    bus_events = [event for event in bench.events if event.type in MIRRORED_TYPES]
    assert compute_vitals(bus_events) == compute_vitals(logged_events)
    assert compute_vitals(logged_events)["tool_calls_total"] == 8
    assert compute_vitals(logged_events)["steps_total"] == 5


async def test_reported_ids_are_those_of_the_spans(
    tmp_path: Path, fake_time: FakeTime, telemetry: Telemetry, memory: Memory
) -> None:
    bench = await run_visit(tmp_path, fake_time, telemetry)
    telemetry.close()

    spans = {f"{span.get_span_context().span_id:016x}": span.name for span in memory.spans}
    events = {event.span_id: event.type for event in bench.events if event.span_id}
    assert {spans[span_id].split()[0] for span_id in events} == {"step", "chat", "execute_tool"}
    assert len(events) == 5 + 5 + 8
    started_ids = {e.span_id for e in bench.events if e.type is EventType.TOOL_CALL_STARTED}
    assert started_ids == {e.span_id for e in bench.events if e.type is EventType.TOOL_CALL_COMPLETED}


async def test_failing_log_does_not_fail_the_run(
    tmp_path: Path, fake_time: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    class FullLog(EmptyLog):
        async def append(self, events: object) -> None:
            raise OSError("disk full")

    bench = Bench(tmp_path, ScriptedModel([]), fake_time)
    reporter = Reporter(
        bus=EventBus(log=FullLog()), worker=bench.worker, origin=bench.reporter.origin, clock=fake_time
    )

    await reporter.emit(EventType.GOAL_PROGRESS, {"fraction": 0.5})

    assert "goal_progress" in caplog.text


async def test_waits_and_checkpoints_reach_bus_and_telemetry(tmp_path: Path, fake_time: FakeTime) -> None:
    bench = Bench(tmp_path, ScriptedModel([]), fake_time)

    with pytest.raises(ZeroDivisionError):
        async with bench.reporter.waiting(WaitingReason.CHILDREN, node_id="n", children=2):
            raise ZeroDivisionError
    await bench.reporter.checkpoint("cp1", node_id="n")

    assert [(event.type.value, dict(event.data)) for event in bench.events] == [
        ("worker_waiting", {"reason": "children", "children": 2}),
        ("worker_waiting", {"reason": None}),
        ("checkpoint_saved", {"checkpoint_id": "cp1"}),
    ]


async def test_event_carries_origin_ids(tmp_path: Path, fake_time: FakeTime) -> None:
    """B63: events of all publishers have the graph."""
    bench = Bench(tmp_path, ScriptedModel([ModelReply(text="Hi.")]), fake_time, output_keys=())

    await bench.run()

    for event in bench.events:
        origin_fields = (
            event.agent_id,
            event.session_id,
            event.graph_id,
            event.stream_id,
            event.execution_id,
        )
        assert origin_fields == ("bee", "s1", "g", "g::main", "x1")
        assert (event.node_id, event.incarnation_id) == ("n", bench.worker.incarnation_id)


async def test_block_cancelled_on_enter_is_exited(
    tmp_path: Path, fake_time: FakeTime, telemetry: Telemetry, memory: Memory
) -> None:
    class Slow(EmptyLog):
        async def append(self, events: object) -> None:
            await asyncio.Event().wait()

    bench = Bench(tmp_path, ScriptedModel([]), fake_time, telemetry=telemetry)
    reporter = Reporter(
        bus=EventBus(log=Slow()), worker=bench.worker, origin=bench.reporter.origin, clock=fake_time
    )

    async def work() -> None:
        async with reporter.step("n"):
            raise AssertionError("the block must not run")

    with bench.worker:
        task = asyncio.create_task(work())
        await fake_time.settle()
        task.cancel()
        await asyncio.wait([task])
    telemetry.close()

    assert task.cancelled()
    assert memory.find_span("step n")  # a span is sent when it ends
