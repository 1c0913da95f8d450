"""
The Model Context Protocol: a client's span of a tool call, inside the framework's or instead of it.

https://opentelemetry.io/docs/specs/semconv/gen-ai/mcp/
"""

from __future__ import annotations

from queenright.instrumentation.conventions.kind import Kind

ATTRIBUTES = {"tool": ("mcp.tool.name",)}

SPAN_NAMES = (("tools/call ", Kind.TOOL),)
