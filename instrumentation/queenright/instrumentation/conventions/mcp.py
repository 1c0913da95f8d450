"""
The Model Context Protocol: a client's span for a tool call, inside or instead of the framework's span.

https://opentelemetry.io/docs/specs/semconv/gen-ai/mcp/
"""

from __future__ import annotations

from queenright.instrumentation.conventions.kind import Kind

ATTRIBUTES = {"tool": ("mcp.tool.name",)}

SPAN_NAMES = (("tools/call ", Kind.TOOL),)
