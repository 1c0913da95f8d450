"""
Partial spans: log records about spans that are open, as the PartialSpanProcessors of several languages send.

https://github.com/open-telemetry/opentelemetry-python-contrib/pull/3564
"""

from __future__ import annotations

ATTRIBUTES = {"partial_event": ("partial.event",)}
"""``heartbeat`` while a span is open, ``stop`` once it has ended; the record's body is the span."""
