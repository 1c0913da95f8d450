from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from queenright.runtime.events import AgentEvent, EventType
from queenright.server.build import build
from queenright.server.metrics.tracing import make_tracer_provider
from queenright.server.service import Service
from queenright.server.settings import Settings
from tests.isolation import CLOSED_URL
from tests.server.conftest import looping

STEP_TRACE, STEP_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
async def service(settings: Settings, exporter: InMemorySpanExporter) -> AsyncIterator[Service]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    service = await build(settings, tracer=provider.get_tracer("test"))
    await service.start()
    yield service
    await service.stop()


async def wait_for_span(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    for _ in range(3000):
        for span in exporter.get_finished_spans():
            if span.name.startswith(name):
                return span
        await asyncio.sleep(0.02)
    raise AssertionError(f"within 60 s: a span {name}")


def get_context(span: ReadableSpan) -> SpanContext:
    span_context = span.get_span_context()
    assert isinstance(span_context, SpanContext)
    return span_context


async def test_one_trace_links_the_page_to_the_step(service: Service, exporter: InMemorySpanExporter) -> None:
    events = [replace(item, trace_id=STEP_TRACE, span_id=STEP_SPAN) for item in looping(service.clock())]
    await service.ingest(events)
    check = await wait_for_span(exporter, "judge_check looper")
    triage = await wait_for_span(exporter, "triage looper")
    [ticket] = service.tickets.open_tickets()
    await service.bus.publish(
        AgentEvent(
            type=EventType.NOTIFICATION_DELIVERED,
            time=service.clock(),
            data={
                "ticket_id": ticket.ticket_id,
                "peer": "http://peer:9093",
                "status": "firing",
                "attempts": 1,
            },
        )
    )
    notify = await wait_for_span(exporter, "notify http://peer:9093")
    health = await wait_for_span(exporter, "health_check looper")

    trace_id, span_id = get_context(check).trace_id, get_context(check).span_id
    assert {get_context(triage).trace_id, get_context(notify).trace_id} == {trace_id}
    assert triage.parent is not None
    assert triage.parent.span_id == span_id
    for span in (check, notify, health):
        [link] = span.links
        assert f"{link.context.trace_id:032x}" == STEP_TRACE
        assert f"{link.context.span_id:016x}" == STEP_SPAN
    assert [event.name for event in health.events] == ["queenright.finding"]


@pytest.mark.parametrize(
    ("endpoint", "is_sending"),
    [
        ("", False),
        ("http://localhost:4318", False),
        ("http://127.0.0.1:4318/", False),
        ("http://tempo:4318", True),
    ],
)
def test_service_never_sends_its_spans_to_itself(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, is_sending: bool
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)

    provider = make_tracer_provider("http://127.0.0.1:4318")

    assert bool(provider._active_span_processor._span_processors) is is_sending
    provider.shutdown()


def test_stop_does_not_wait_for_an_unavailable_trace_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", CLOSED_URL)
    monkeypatch.setattr("queenright.server.metrics.tracing._LAST_EXPORT_SECONDS", 0.01)
    provider = make_tracer_provider("http://127.0.0.1:4318")
    provider.get_tracer("test").start_span("last").end()

    start_time = time.monotonic()
    provider.shutdown()

    # By default, the exporter would retry for ten seconds.
    assert time.monotonic() - start_time < 5


async def test_interventions_and_recoveries_are_in_the_trace_of_the_ticket(
    service: Service, exporter: InMemorySpanExporter
) -> None:
    events = [
        replace(trace_event, trace_id=STEP_TRACE, span_id=STEP_SPAN)
        for trace_event in looping(service.clock())
    ]
    await service.ingest(events)
    triage = await wait_for_span(exporter, "triage looper")
    [ticket] = service.tickets.open_tickets()
    start_time = service.clock()

    def make_event(kind: EventType, event_time: float, **data: object) -> AgentEvent:
        worker_fields = {"agent_id": "looper", "session_id": "looper-session", "incarnation_id": "one"}
        return AgentEvent(
            type=kind, time=event_time, data={"by": "ladder", "reason": "stuck", **data}, **worker_fields
        )

    service.bus.fan_out(
        make_event(EventType.NUDGE_SENT, start_time, attempt=1, delivery="queued", message="m"),
        make_event(EventType.ESCALATION_TRIGGERED, start_time, escalation_id="e"),
        make_event(EventType.AGENT_TERMINATED, start_time, confirmed=False),
        make_event(EventType.RECOVERY_INITIATED, start_time, recovery_id="r", attempt=1),
        make_event(EventType.RECOVERY_FAILED, start_time + 3, recovery_id="r", attempt=1),
    )
    spans = {
        name: await wait_for_span(exporter, name)
        for name in ("intervene nudge", "intervene escalate", "intervene terminate", "recover looper")
    }

    for span in spans.values():
        assert get_context(span).trace_id == get_context(triage).trace_id
        assert span.attributes is not None
        assert span.attributes["queenright.ticket.id"] == ticket.ticket_id
        assert f"{span.links[0].context.span_id:016x}" == STEP_SPAN
    kinds = [span.attributes["queenright.intervention.kind"] for span in spans.values() if span.attributes]
    assert kinds == ["nudge", "escalate", "terminate", "recover"]
    recovery = spans["recover looper"]
    assert recovery.end_time is not None
    assert recovery.start_time is not None
    assert recovery.end_time - recovery.start_time == pytest.approx(3e9, rel=1e-3)
    assert [span.status.is_ok for span in spans.values()] == [True, True, False, False]
