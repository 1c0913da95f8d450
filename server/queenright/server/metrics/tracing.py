"""
Create the service's own spans. A single trace connects a notification with the worker's step.

Spans of health state changes, notifications, interventions and recoveries are created here, from events.
Judge and queen create their own.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, Status, StatusCode, Tracer

from queenright.health.action_kind import ActionKind
from queenright.health.ticket_service import TicketService
from queenright.instrumentation import names
from queenright.judge.tracing import build_links, child_context
from queenright.runtime.events import RECOVERY_EVENTS, AgentEvent, EventType

ENDPOINT_ENV = "OTEL_EXPORTER_OTLP_ENDPOINT"
_INTERVENTION_KINDS: Final = {
    EventType.NUDGE_SENT: ActionKind.NUDGE,
    EventType.ESCALATION_TRIGGERED: ActionKind.ESCALATE,
    EventType.AGENT_TERMINATED: ActionKind.TERMINATE,
}
TRACED_EVENTS = frozenset({EventType.HEALTH_STATE_CHANGED, EventType.NOTIFICATION_DELIVERED}).union(
    _INTERVENTION_KINDS, RECOVERY_EVENTS
)
_LAST_EXPORT_SECONDS: Final = 2.0
"""Maximum seconds that a stop waits for the export of the last spans."""

_MAX_RECOVERIES: Final = 1000
"""Maximum number of open recoveries to remember; the newest are kept."""


def make_tracer_provider(own_url: str) -> TracerProvider:
    """
    Return a provider that exports spans to ``OTEL_EXPORTER_OTLP_ENDPOINT``, if it is set.

    Without an exporter, spans still have ids, which tickets use. The service never exports to its own
    receiver at ``own_url``, which the variable names in a shell that is set up for agents.
    """
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: "queenright"}))
    endpoint = os.environ.get(ENDPOINT_ENV, "")
    if endpoint and _parse_address(endpoint) != _parse_address(own_url):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        class Processor(BatchSpanProcessor):
            def shutdown(self) -> None:
                # `shutdown` has no time limit, and the exporter retries for ten seconds.
                timer = threading.Timer(_LAST_EXPORT_SECONDS, self.span_exporter.shutdown)
                timer.daemon = True
                timer.start()
                super().shutdown()  # type: ignore[no-untyped-call]  # the SDK annotates no result
                timer.cancel()

        provider.add_span_processor(Processor(OTLPSpanExporter()))
    return provider


def _parse_address(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    host = "127.0.0.1" if parts.hostname in ("localhost", "0.0.0.0", "::1") else parts.hostname
    return host, parts.port


class EventTracer:
    """
    Creates spans from events. Subscribe `trace` to the types in `TRACED_EVENTS`.

    Args:
        tracer: Creates the spans.
        tickets: Finds the ticket of a notification or an intervention, which has the trace.
    """

    def __init__(self, tracer: Tracer, tickets: TicketService) -> None:
        self._tracer = tracer
        self._tickets = tickets
        self._started_at: OrderedDict[str, float] = OrderedDict()

    def trace(self, event: AgentEvent) -> None:
        """Create the span of an event, at the event's time."""
        if event.type is EventType.HEALTH_STATE_CHANGED:
            self._trace_state_change(event)
        elif event.type in _INTERVENTION_KINDS:
            self._trace_intervention(event, _INTERVENTION_KINDS[event.type])
        elif event.type in RECOVERY_EVENTS:
            self._trace_recovery(event)
        else:
            self._trace_notification(event)

    def _trace_state_change(self, event: AgentEvent) -> None:
        at = int(event.time * 1e9)
        span = self._tracer.start_span(
            f"{names.SPAN_HEALTH_CHECK} {event.agent_id}",
            attributes={
                names.GEN_AI_AGENT_NAME: event.agent_id,
                names.GEN_AI_CONVERSATION_ID: event.session_id,
                names.HEALTH_STATE: str(event.data["to"]),
            },
            links=build_links(event.trace_id, event.span_id),
            start_time=at,
        )
        for finding in event.data.get("findings", ()):
            attributes = {key: str(finding[key]) for key in ("kind", "severity", "evidence")}
            span.add_event("queenright.finding", attributes, timestamp=at)
        span.end(at)

    def _trace_notification(self, event: AgentEvent) -> None:
        ticket = self._tickets.get(str(event.data["ticket_id"]))
        if ticket is None:
            return
        at = int(event.time * 1e9)
        self._tracer.start_span(
            f"{names.SPAN_NOTIFY} {event.data['peer']}",
            context=child_context(ticket.trace_id, ticket.span_id),
            attributes={
                names.GEN_AI_AGENT_NAME: ticket.agent_id,
                names.TICKET_ID: ticket.ticket_id,
            },
            links=build_links(ticket.worker_trace_id, ticket.worker_span_id),
            start_time=at,
        ).end(at)

    def _trace_intervention(self, event: AgentEvent, kind: ActionKind) -> None:
        span = self._start_span(event, f"{names.SPAN_INTERVENE} {kind.value}", kind, event.time)
        if event.type is EventType.AGENT_TERMINATED and not event.data.get("confirmed", True):
            span.set_status(Status(StatusCode.ERROR, "it did not confirm that it has stopped"))
        span.end(int(event.time * 1e9))

    def _trace_recovery(self, event: AgentEvent) -> None:
        """Create a single span from the start and end of a recovery."""
        recovery = str(event.data.get("recovery_id", ""))
        if event.type is EventType.RECOVERY_INITIATED:
            if recovery:
                self._started_at[recovery] = event.time
            if len(self._started_at) > _MAX_RECOVERIES:
                self._started_at.popitem(last=False)
            return
        started_at = min(self._started_at.pop(recovery, event.time), event.time)
        span = self._start_span(
            event, f"{names.SPAN_RECOVER} {event.agent_id}", ActionKind.RECOVER, started_at
        )
        if event.type is EventType.RECOVERY_FAILED:
            span.set_status(Status(StatusCode.ERROR, str(event.data.get("reason", ""))))
        span.end(int(event.time * 1e9))

    def _start_span(self, event: AgentEvent, name: str, kind: ActionKind, started_at: float) -> Span:
        """Start a span in the ticket's trace, or in a new trace, with a link to the worker's step."""
        ticket = self._tickets.open_for(event.agent_id, event.session_id)
        attributes = {
            names.GEN_AI_AGENT_NAME: event.agent_id,
            names.GEN_AI_CONVERSATION_ID: event.session_id,
            names.INTERVENTION_KIND: kind.value,
        }
        links = build_links(event.trace_id, event.span_id)
        if ticket is not None:
            attributes[names.TICKET_ID] = ticket.ticket_id
            links = links or build_links(ticket.worker_trace_id, ticket.worker_span_id)
        return self._tracer.start_span(
            name,
            context=child_context(ticket.trace_id, ticket.span_id) if ticket is not None else None,
            attributes=attributes,
            links=links,
            start_time=int(started_at * 1e9),
        )
