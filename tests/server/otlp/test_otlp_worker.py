"""The Worker of `queenright.instrumentation` sends to the receiver over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from prometheus_client import CollectorRegistry

from queenright.health.findings import FindingKind
from queenright.health.monitoring.monitor import HealthMonitor
from queenright.health.settings import HealthSettings
from queenright.instrumentation import Telemetry, Worker
from queenright.runtime.events import AgentEvent, EventType
from queenright.server.otlp.decode import decode_logs
from queenright.server.telemetry.assembler import Assembler
from tests.server.otlp.framework_spans import NOW, make_any_value

if TYPE_CHECKING:
    from tests.server.otlp.conftest import RunningReceiver

SESSION = "session-1"


async def run_worker(otlp: RunningReceiver, act: Callable[[Worker], None]) -> list[AgentEvent]:
    """Run a worker in its own thread, and return the events that arrived, in order of time."""

    def run() -> None:
        telemetry = Telemetry(otlp.url)
        try:
            worker = Worker(
                "scout",
                session_id=SESSION,
                graph_id="foraging",
                version="1.2",
                telemetry=telemetry,
                registry=CollectorRegistry(),
                heartbeat_interval=30,
            )
            with worker:
                act(worker)
        finally:
            telemetry.close(5.0)

    await asyncio.to_thread(run)
    return sorted(otlp.events, key=lambda event: event.time)


async def test_all_events_of_a_run_arrive_in_order(otlp: RunningReceiver) -> None:
    def act(worker: Worker) -> None:
        with worker.step("forage") as step:
            with step.llm("model-1", "provider-1") as llm:
                llm.usage(120, 8)
            with step.tool("search", {"q": "hive"}, timeout=2400, call_id="c-1") as call:
                call.result("a meadow")
            step.verdict("ACCEPT")
        with worker.waiting("user_input"):
            worker.heartbeat("half way")
        worker.checkpoint("cp-1")
        worker.output(files_changed=3, tests_failed=0)

    events = await run_worker(otlp, act)

    assert [event.type.value for event in events] == [
        "execution_started",
        "step_started",
        "llm_call_started",
        "llm_call_completed",
        "tool_call_started",
        "tool_call_completed",
        "step_completed",
        "worker_waiting",
        "agent_heartbeat",
        "worker_waiting",
        "checkpoint_saved",
        "output_reported",
        "execution_completed",
    ]
    assert {(item.agent_id, item.session_id, item.graph_id) for item in events} == {
        ("scout", SESSION, "foraging")
    }
    assert len({item.incarnation_id for item in events}) == len({item.trace_id for item in events}) == 1
    payloads = [item.data for item in events]
    run_start, step_started, llm_started, llm_end, tool_started, tool_end, step_end = payloads[:7]
    wait_start, heartbeat, run_end, checkpoint, output, _ = payloads[7:]
    assert run_start == {
        "start_records": True,
        "framework": "queenright",
        "version": "1.2",
        "heartbeat_interval": 30.0,
        "task_id": SESSION,
    }
    assert step_started == {"index": 0}
    assert llm_started == {"model": "model-1", "provider": "provider-1"}
    assert (llm_end["input_tokens"], llm_end["output_tokens"]) == (120, 8)
    assert tool_started == {"tool": "search", "call_id": "c-1", "timeout": 2400.0}
    assert (tool_end["outcome"], bool(tool_end["args_hash"]), bool(tool_end["result_hash"])) == (
        "ok",
        True,
        True,
    )
    assert (step_end["verdict"], step_end["index"]) == ("ACCEPT", 0)
    assert (wait_start, run_end) == ({"reason": "user_input"}, {"reason": None})
    assert heartbeat == {
        "interval": 30.0,
        "phase": "idle",
        "last_tool_call": pytest.approx(events[4].time, abs=1e-6),
        "token_count": 128,
        "error_count": 0,
        "progress_indicator": "half way",
        "task_id": SESSION,
    }
    assert output == {"files_changed": 3, "tests_failed": 0}
    assert checkpoint == {"checkpoint_id": "cp-1"}
    assert {item.node_id for item in events[1:7]} == {"forage"}


async def test_crash_is_a_failed_run(otlp: RunningReceiver) -> None:
    def act(worker: Worker) -> None:
        with worker.step("forage") as step, step.tool("search", {}):
            raise TimeoutError("no answer, token=s3cretvalue")

    with pytest.raises(TimeoutError):
        await run_worker(otlp, act)

    tool, step, run = sorted(otlp.events, key=lambda event: event.time)[-3:]
    assert (tool.type, tool.data["outcome"]) == ("tool_call_completed", "timeout")
    assert (step.type, step.data["error_type"], "verdict" in step.data) == (
        "step_completed",
        "TimeoutError",
        False,
    )
    assert run.type == "execution_failed"
    assert "s3cretvalue" not in str(otlp.events)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"paused": True}, ("execution_paused", {})),
        ({"error": asyncio.CancelledError()}, ("execution_failed", {"error_type": "CancelledError"})),
        ({}, ("execution_completed", {})),
    ],
)
async def test_run_ends_with_the_reported_outcome(
    otlp: RunningReceiver, options: dict[str, Any], expected: tuple[str, dict[str, str]]
) -> None:
    """B18: a paused run has not ended. Telemetry alone shows this."""
    events = await run_worker(otlp, lambda worker: worker.close(**options))

    assert events[-1].type == expected[0]
    assert expected[1].items() <= events[-1].data.items()


async def test_model_turn_is_not_a_worker_step(otlp: RunningReceiver) -> None:
    def act(worker: Worker) -> None:
        with worker.step("forage") as step:
            for _ in range(3):
                with step.llm("model-1"):
                    pass

    events = await run_worker(otlp, act)

    assert [event.type.value for event in events].count("step_completed") == 1


async def test_sequential_calls_in_one_step_count_separately(otlp: RunningReceiver) -> None:
    def act(worker: Worker) -> None:
        with worker.step("forage") as step:
            for _ in range(4):
                with step.tool("search", {"q": "hive"}) as call:
                    call.result("nothing")

    events = await run_worker(otlp, act)

    tools = [event.data for event in events if event.type == "tool_call_completed"]
    assert len({(data["args_hash"], data["result_hash"]) for data in tools}) == 1
    assert len({data["turn"] for data in tools}) == 4


async def test_nameless_model_client_span_inside_a_step_belongs_to_the_worker(otlp: RunningReceiver) -> None:
    """Spans of another library inside a step belong to the worker and do not create a second worker."""
    exporter = OTLPSpanExporter(f"{otlp.url}/v1/traces")
    provider = TracerProvider(resource=Resource({"service.name": "app", "service.instance.id": "i-1"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def run() -> None:
        telemetry = Telemetry(otlp.url, tracer_provider=provider)
        with Worker("scout", session_id=SESSION, telemetry=telemetry, registry=CollectorRegistry()) as worker:
            with worker.step("warm-up"):
                pass
            with (
                worker.step("forage"),
                provider.get_tracer("openai").start_as_current_span(
                    "chat gpt", attributes={"gen_ai.system": "openai"}
                ),
            ):
                pass
        telemetry.close(5.0)
        provider.shutdown()

    await asyncio.to_thread(run)

    types = otlp.list_types()
    assert len({(event.agent_id, event.session_id, event.incarnation_id) for event in otlp.events}) == 1
    assert types.count("llm_call_completed") == 1
    assert (types.count("step_completed"), types.count("execution_started")) == (2, 1)


def _fill_memory(worker: Worker) -> None:
    worker.resource("memory", used=101, limit=100)


def _open_breaker(worker: Worker) -> None:
    worker.circuit_breaker("maps", "open")


def _exceed_context(worker: Worker) -> None:
    for _ in range(3):
        with contextlib.suppress(ValueError), worker.step("work") as step, step.llm("model-1", "provider-1"):
            raise ValueError("400: prompt is too long: 210000 tokens > 200000 maximum")


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (_fill_memory, FindingKind.RESOURCE_LIMIT),
        (_open_breaker, FindingKind.CIRCUIT_BREAKER_OPEN),
        (_exceed_context, FindingKind.CONTEXT_EXHAUSTED),
    ],
)
async def test_worker_can_cause_each_finding(
    otlp: RunningReceiver, act: Callable[[Worker], None], kind: FindingKind
) -> None:

    def act_then_step(worker: Worker) -> None:
        act(worker)
        with worker.step("next"):
            pass

    monitor = HealthMonitor(HealthSettings())
    findings = [
        item for event in await run_worker(otlp, act_then_step) for item in monitor.apply(event, event.time)
    ]

    assert [item.data["kind"] for item in findings if item.type is EventType.FINDING_OPENED] == [kind]


@pytest.mark.parametrize(
    ("record", "attributes", "kind"),
    [
        (
            "queenright.resource",
            {
                "queenright.resource.name": "disk",
                "queenright.resource.used": 101.0,
                "queenright.resource.limit": 100.0,
            },
            FindingKind.RESOURCE_LIMIT,
        ),
        (
            "queenright.circuit_breaker",
            {"queenright.circuit_breaker.name": "maps", "queenright.circuit_breaker.state": "open"},
            FindingKind.CIRCUIT_BREAKER_OPEN,
        ),
    ],
)
def test_log_record_can_cause_each_finding(
    record: str, attributes: dict[str, Any], kind: FindingKind
) -> None:
    request = ExportLogsServiceRequest()
    log = (
        request.resource_logs.add()
        .scope_logs.add()
        .log_records.add(event_name=record, time_unix_nano=int(NOW * 1e9))
    )
    all_attributes = {"gen_ai.agent.name": "scout", "gen_ai.conversation.id": "c", **attributes}
    log.attributes.extend(
        KeyValue(key=key, value=make_any_value(content)) for key, content in all_attributes.items()
    )
    monitor = HealthMonitor(HealthSettings())

    for event in decode_logs(request, Assembler(), NOW).events:
        monitor.apply(event, NOW)

    [worker] = monitor.workers()
    assert [finding.kind for finding in worker.findings] == [kind]
