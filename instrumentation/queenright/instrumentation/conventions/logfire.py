"""
Logfire: names of spans that are templates (``Agent run: {name!r}``), and pending spans.

https://logfire.pydantic.dev/docs/
"""

from __future__ import annotations

from queenright.instrumentation.conventions.kind import Kind

ATTRIBUTES = {"pending_parent": ("logfire.pending_parent_id",)}
"""Only pending spans have it: one is sent when a span begins, as its child, and names that span's parent."""

TEMPLATES = {
    "Agent run:": Kind.AGENT,
    "Chat Completion with": Kind.LLM,
    "Chat completion with": Kind.LLM,
    "Function:": Kind.TOOL,
    "Responses API with": Kind.LLM,
}
"""What stands before the only field of a template."""
