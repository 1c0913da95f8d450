"""
The cost of watching open spans: start and end of a span with and without `watch_spans`' processor.

Both sides are measured alternately in the same process. Each has the SDK's batch processor with an exporter
that encodes and discards; one also has our processor, whose thread checks the open spans meanwhile. The
cost to the agent is the CPU time of its own thread; the second row has that of all threads.
"""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer

from queenright.instrumentation.delivery import Delivery
from queenright.instrumentation.open_spans import OpenSpans
from tools.benchmarks.instrumentation import (
    ATTRIBUTES,
    DiscardingExporter,
    DiscardingSender,
    compare,
    cpu_seconds,
)
from tools.benchmarks.row import Row

ROUNDS = 41


def run() -> list[Row]:
    """Measure typical spans of agents, and the cheapest possible spans."""
    return [*_measure("3 spans of 8 attributes", ATTRIBUTES), *_measure("3 spans without attributes", {})]


def _measure(name: str, attributes: dict[str, str | int | float]) -> list[Row]:
    raw, watching = _create_provider(), _create_provider()
    watching.add_span_processor(OpenSpans(Delivery(DiscardingSender)))
    # The run that contains the spans: it is reported, and every tick checks it.
    agent = watching.get_tracer("agent").start_span("invoke_agent bee")
    first, second = raw.get_tracer("raw"), watching.get_tracer("watched")
    rounds = [
        (
            cpu_seconds(lambda: _record_spans(first, attributes), raw.force_flush),
            cpu_seconds(lambda: _record_spans(second, attributes), watching.force_flush),
        )
        for _ in range(ROUNDS)
    ]
    agent.end()
    for provider in (raw, watching):
        provider.shutdown()
    thread, process = ([(raw[n], watching[n]) for raw, watching in rounds] for n in (0, 1))
    return [
        compare(f"{name}, watched against raw: the agent's thread", 1.3, thread),
        compare("the same: all threads, with encoding", None, process),
    ]


def _create_provider() -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(DiscardingExporter(), max_queue_size=100_000, schedule_delay_millis=500)
    )
    return provider


def _record_spans(tracer: Tracer, attributes: dict[str, str | int | float]) -> None:
    with (
        tracer.start_as_current_span("agent run", attributes=attributes),
        tracer.start_as_current_span("chat model", attributes=attributes),
    ):
        pass
    with tracer.start_as_current_span("execute_tool search", attributes=attributes):
        pass


if __name__ == "__main__":
    for row in run():
        print(row)
