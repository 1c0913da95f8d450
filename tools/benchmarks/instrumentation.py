"""
The cost of instrumentation for the agent: a step against three OpenTelemetry spans, and the metrics.

Both sides are measured alternately in the same process, with an exporter that discards the spans: the raw
side through the SDK's batch processor, ours through our own delivery. The cost to the agent is the CPU time
of its own thread; the second row has that of all threads until everything is delivered, where both sides
encode what they send.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from prometheus_client import CollectorRegistry

from queenright.instrumentation import Telemetry, Worker
from queenright.instrumentation.delivery import SendResult
from queenright.instrumentation.drop_counter import Signal
from queenright.instrumentation.metrics import WorkerFamilies
from queenright.instrumentation.otlp import SCOPE
from tools.benchmarks.row import Row

ROUNDS = 41
STEPS = 100
RESOURCE = Resource({})
ATTRIBUTES: dict[str, str | int | float] = {
    "gen_ai.agent.name": "deep_research_agent",
    "gen_ai.conversation.id": "0198c0de-0000-7000-8000-000000000001",
    "queenright.incarnation.id": "0198c0de-0000-7000-8000-000000000002",
    "queenright.node.id": "researcher",
    "queenright.step.index": 7,
    "gen_ai.operation.name": "execute_tool",
    "gen_ai.tool.name": "search",
    "queenright.tool.timeout": 30.0,
}


class DiscardingExporter(SpanExporter):
    """Encodes spans and discards them."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializePartialToString()
        return SpanExportResult.SUCCESS


class DiscardingSender:
    """Encodes the items of our own delivery and discards them."""

    destination = "nowhere"

    def send(self, signal: Signal, batch: Sequence[Any]) -> SendResult:
        if signal == "spans":
            encode_spans(
                [span.to_readable_span(RESOURCE, SCOPE) for span in batch]
            ).SerializePartialToString()
        else:
            records = [ReadableLogRecord(record.to_log_record(), RESOURCE, SCOPE) for record in batch]
            encode_logs(records).SerializePartialToString()
        return SendResult.DELIVERED

    def close(self) -> None:
        """Hold nothing that must be closed."""


def run() -> list[Row]:
    """Run all measurements."""
    with tempfile.TemporaryDirectory() as storage:
        return [*_measure_step(storage), _measure_metrics()]


def _measure_step(storage: str) -> list[Row]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(DiscardingExporter(), max_queue_size=100_000, schedule_delay_millis=500)
    )
    tracer = provider.get_tracer("raw")
    telemetry = Telemetry(connect=DiscardingSender, capacity=100_000)
    arguments = {"q": "hive", "limit": 10}

    def raw() -> None:
        with (
            tracer.start_as_current_span("step researcher", attributes=ATTRIBUTES),
            tracer.start_as_current_span("chat model", attributes=ATTRIBUTES),
        ):
            pass
        with tracer.start_as_current_span("execute_tool search", attributes=ATTRIBUTES):
            pass

    registry = CollectorRegistry()
    with Worker("deep_research_agent", telemetry=telemetry, registry=registry, storage=storage) as worker:

        def ours() -> None:
            with worker.step("researcher") as step:
                with step.llm("model", "provider") as llm:
                    llm.usage(120, 30)
                with step.tool("search", arguments, timeout=30.0) as call:
                    call.result("three results, none of them new")
                step.verdict("CONTINUE")

        rounds = [
            (cpu_seconds(raw, provider.force_flush), cpu_seconds(ours, telemetry.flush))
            for _ in range(ROUNDS)
        ]
    telemetry.close()
    provider.shutdown()
    thread, process = ([(raw[n], ours[n]) for raw, ours in rounds] for n in (0, 1))
    return [
        compare("a step against 3 raw spans: the agent's thread", 1.5, thread),
        compare("the same: all threads, with start records and encoding", None, process),
    ]


def compare(name: str, budget: float | None, rounds: Sequence[tuple[float, float]]) -> Row:
    """Return the row that compares two alternately measured sides, raw spans first."""
    ratio = statistics.median(ours / raw for raw, ours in rounds)
    raw, ours = (statistics.median(side) * 1e6 for side in zip(*rounds, strict=True))
    text = f"{ratio:.2f} x ({ours:.0f} µs / {raw:.0f} µs)"
    return Row(name, text, f"≤ {budget} x" if budget else "none", budget is None or ratio <= budget)


def _measure_metrics() -> Row:
    series = WorkerFamilies.of(CollectorRegistry()).acquire("deep_research_agent")
    exemplar = {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736"}

    def metrics() -> None:
        now = time.time()
        for _ in range(6):  # start and end of step, model call and tool call
            series.activity(now)
        series.count_tokens("model", 120, 30)
        series.count_tool_call("search", "ok", 0.2, exemplar)
        series.count_step("researcher", "retry", 1.2, exemplar)
        series.set_bad_steps(1, 3)
        series.progress(now)

    seconds = statistics.median(cpu_seconds(metrics)[0] for _ in range(ROUNDS))
    return Row("all metrics of a step", f"{seconds * 1e6:.1f} µs", "≤ 10 µs", seconds <= 10e-6)


def cpu_seconds(call: Callable[[], None], deliver: Callable[[], object] = bool) -> tuple[float, float]:
    """Return the CPU seconds of a call: of this thread, and of all threads until everything is delivered."""
    gc.collect()
    thread, process = time.thread_time(), time.process_time()
    for _ in range(STEPS):
        call()
    thread = time.thread_time() - thread
    deliver()
    return thread / STEPS, (time.process_time() - process) / STEPS


if __name__ == "__main__":
    for row in run():
        print(row)
