"""
Lightweight spans with OpenTelemetry's interface.

The SDK creates, locks and copies a span on the agent's thread; three spans cost about 70 µs. A
``LightSpan`` stores its data in a plain dictionary and becomes a ``ReadableSpan`` for the SDK's exporters
on the delivery thread.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    get_current_span,
    use_span,
)
from opentelemetry.util._decorator import _agnosticcontextmanager
from opentelemetry.util.types import Attributes, AttributeValue

_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_UNSET: Final = Status(StatusCode.UNSET)


@dataclass(slots=True, eq=False, repr=False)
class LightSpan(Span):
    """A span that passes itself to a callback, once, when it ends."""

    name: str
    context: SpanContext
    parent: SpanContext | None
    kind: SpanKind
    attributes: dict[str, Any]
    links: Sequence[Link]
    start_time: int
    on_end: Callable[[LightSpan], None]
    end_time: int | None = None
    events: list[Event] = field(default_factory=list)
    status: Status = _UNSET

    def get_span_context(self) -> SpanContext:
        """Return the span context."""
        return self.context

    def is_recording(self) -> bool:
        """Return whether the span has not ended."""
        return self.end_time is None

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        """Set one attribute."""
        if self.end_time is None:
            self.attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Set several attributes."""
        if self.end_time is None:
            self.attributes.update(attributes)

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        """Add an event."""
        if self.end_time is None:
            self.events.append(Event(name, attributes, timestamp))

    def update_name(self, name: str) -> None:
        """Change the name."""
        if self.end_time is None:
            self.name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status. A status of OK is final."""
        if self.end_time is None and self.status.status_code is not StatusCode.OK:
            self.status = status if isinstance(status, Status) else Status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Add an event with the exception's class. Its text may contain secrets and is not recorded."""
        self.add_event("exception", {"exception.type": type(exception).__qualname__}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        """End the span, once."""
        if self.end_time is None:
            self.end_time = end_time if end_time is not None else time.time_ns()
            self.on_end(self)

    def to_readable_span(self, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
        """Return the span in the form that the SDK's exporters accept."""
        return ReadableSpan(
            name=self.name,
            context=self.context,
            parent=self.parent,
            resource=resource,
            attributes=self.attributes,
            events=self.events,
            links=self.links,
            kind=self.kind,
            status=self.status,
            start_time=self.start_time,
            end_time=self.end_time,
            instrumentation_scope=scope,
        )


class LightTracer(Tracer):
    """
    Creates light spans.

    Args:
        on_end: Called with each span when it ends, on the agent's thread.
    """

    def __init__(self, on_end: Callable[[LightSpan], None]) -> None:
        self._on_end = on_end

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> Span:
        """Start a span as a child of the one in ``context``, or of the current one."""
        parent: SpanContext | None = get_current_span(context).get_span_context()
        if parent is not None and parent.is_valid:
            trace_id, state = parent.trace_id, parent.trace_state
        else:
            trace_id, state, parent = random.getrandbits(128) or 1, None, None
        return LightSpan(
            name,
            SpanContext(trace_id, random.getrandbits(64) or 1, False, _SAMPLED, state),
            parent,
            kind,
            dict(attributes) if attributes else {},
            links or (),
            start_time if start_time is not None else time.time_ns(),
            self._on_end,
        )

    @_agnosticcontextmanager
    def start_as_current_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        end_on_exit: bool = True,
    ) -> Iterator[Span]:
        """Start a span and make it current while the block runs."""
        span = self.start_span(name, context, kind, attributes, links, start_time)
        with use_span(span, end_on_exit, record_exception, set_status_on_exception) as current:
            yield current
