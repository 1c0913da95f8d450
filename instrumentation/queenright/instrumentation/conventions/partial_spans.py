"""
Partial spans: log records about open spans, sent by the PartialSpanProcessors of several languages.

https://github.com/open-telemetry/opentelemetry-python-contrib/pull/3564
"""

from __future__ import annotations

ATTRIBUTES = {"partial_event": ("partial.event",)}
"""``heartbeat`` while a span is open, ``stop`` when it has ended; the record's body is the span."""
