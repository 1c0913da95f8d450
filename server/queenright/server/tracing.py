"""
The service's own spans: one trace leads from the page back to the worker's step.

Judge and queen make theirs; here are those of a change of health state and of a notification,
made from the events that say so.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Tracer

from queenright.health.ticket_service import TicketService
from queenright.instrumentation import names
from queenright.judge.tracing import child_of, links_to
from queenright.runtime.events import AgentEvent, EventType

ENDPOINT_ENV = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACED = frozenset({EventType.HEALTH_STATE_CHANGED, EventType.NOTIFICATION_DELIVERED})


def tracer_provider(own_url: str) -> TracerProvider:
    """
    Return where the service's spans go: to ``OTEL_EXPORTER_OTLP_ENDPOINT``, or nowhere.

    Without an exporter spans still have ids, which tickets carry. The service never sends to its own
    receiver at ``own_url``, which is where that variable points in a shell that agents are started from.
    """
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "queenright"}))
    endpoint = os.environ.get(ENDPOINT_ENV, "")
    if endpoint and _address(endpoint) != _address(own_url):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _address(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname in ("localhost", "0.0.0.0", "::1") else parts.hostname
    return host, parts.port


class EventTracer:
    """
    Makes spans of events. Subscribe `trace` to the types in `TRACED`.

    Args:
        tracer: Makes the spans.
        tickets: Knows which trace a notification belongs to.
    """

    def __init__(self, tracer: Tracer, tickets: TicketService) -> None:
        self._tracer = tracer
        self._tickets = tickets

    def trace(self, event: AgentEvent) -> None:
        """Make the span of one event, as long ago as the event is."""
        if event.type is EventType.HEALTH_STATE_CHANGED:
            self._health_check(event)
        else:
            self._notify(event)

    def _health_check(self, event: AgentEvent) -> None:
        at = int(event.time * 1e9)
        span = self._tracer.start_span(
            f"{names.SPAN_HEALTH_CHECK} {event.agent_id}",
            attributes={
                names.GEN_AI_AGENT_NAME: event.agent_id,
                names.GEN_AI_CONVERSATION_ID: event.session_id,
                names.HEALTH_STATE: str(event.data["to"]),
            },
            links=links_to(event.trace_id, event.span_id),
            start_time=at,
        )
        for finding in event.data.get("findings", ()):
            said = {key: str(finding[key]) for key in ("kind", "severity", "evidence")}
            span.add_event("queenright.finding", said, timestamp=at)
        span.end(at)

    def _notify(self, event: AgentEvent) -> None:
        ticket = self._tickets.get(str(event.data["ticket_id"]))
        if ticket is None:
            return
        at = int(event.time * 1e9)
        self._tracer.start_span(
            f"{names.SPAN_NOTIFY} {event.data['peer']}",
            context=child_of(ticket.trace_id, ticket.span_id),
            attributes={
                names.GEN_AI_AGENT_NAME: ticket.worker_agent_id,
                names.TICKET_ID: ticket.ticket_id,
            },
            links=links_to(ticket.worker_trace_id, ticket.worker_span_id),
            start_time=at,
        ).end(at)
