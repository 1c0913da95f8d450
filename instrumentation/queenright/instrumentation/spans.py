"""
Spans that cost the agent little: OpenTelemetry's own interface, finished off the agent's thread.

A span of the SDK is made, locked and copied on the thread that runs the agent; three of them cost it
about 70 µs. These keep what is said of them in a plain dictionary and become the SDK's
``ReadableSpan`` in the delivery's thread, where the SDK's exporters take them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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


class LightSpan(Span):
    """A span whose attributes are what its author says; it is handed on when it ends, once."""

    __slots__ = (
        "_context",
        "_done",
        "attributes",
        "ended",
        "events",
        "kind",
        "links",
        "name",
        "parent",
        "started",
        "status",
    )

    def __init__(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        attributes: dict[str, Any],
        links: Sequence[Link],
        started: int,
        done: Callable[[LightSpan], None],
    ) -> None:
        self.name = name
        self.parent = parent
        self.kind = kind
        self.attributes = attributes
        self.links = links
        self.started = started
        self.ended: int | None = None
        self.events: list[Event] = []
        self.status = _UNSET
        self._context = context
        self._done = done

    def get_span_context(self) -> SpanContext:
        """Return the ids."""
        return self._context

    def is_recording(self) -> bool:
        """Return whether the span has not ended."""
        return self.ended is None

    def set_attribute(self, key: str, value: AttributeValue) -> None:
        """Set one attribute."""
        if self.ended is None:
            self.attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Set some attributes."""
        if self.ended is None:
            self.attributes.update(attributes)

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        """Add an event."""
        if self.ended is None:
            self.events.append(Event(name, attributes, timestamp))

    def update_name(self, name: str) -> None:
        """Change the name."""
        if self.ended is None:
            self.name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status; an OK stands."""
        if self.ended is None and self.status.status_code is not StatusCode.OK:
            self.status = status if isinstance(status, Status) else Status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Add an event that names the class of an exception; its text may hold secrets and stays here."""
        self.add_event("exception", {"exception.type": type(exception).__qualname__}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        """End the span, once."""
        if self.ended is None:
            self.ended = end_time if end_time is not None else time.time_ns()
            self._done(self)

    def readable(self, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
        """Return the span as the SDK's exporters take it."""
        return ReadableSpan(
            name=self.name,
            context=self._context,
            parent=self.parent,
            resource=resource,
            attributes=self.attributes,
            events=self.events,
            links=self.links,
            kind=self.kind,
            status=self.status,
            start_time=self.started,
            end_time=self.ended,
            instrumentation_scope=scope,
        )


class LightTracer(Tracer):
    """
    Makes light spans.

    Args:
        done: Takes each span when it ends, on the agent's thread.
    """

    def __init__(self, done: Callable[[LightSpan], None]) -> None:
        self._done = done

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
        """Start a span below the one in ``context``, or below the current one."""
        above: SpanContext | None = get_current_span(context).get_span_context()
        if above is not None and above.is_valid:
            trace_id, state = above.trace_id, above.trace_state
        else:
            trace_id, state, above = random.getrandbits(128) or 1, None, None
        return LightSpan(
            name,
            SpanContext(trace_id, random.getrandbits(64) or 1, False, _SAMPLED, state),
            above,
            kind,
            dict(attributes) if attributes else {},
            links or (),
            start_time if start_time is not None else time.time_ns(),
            self._done,
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
        """Start a span and make it the current one while the block runs."""
        span = self.start_span(name, context, kind, attributes, links, start_time)
        with use_span(span, end_on_exit, record_exception, set_status_on_exception) as current:
            yield current
