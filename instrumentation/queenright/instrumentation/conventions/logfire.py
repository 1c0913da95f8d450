"""
Logfire: span names that are templates (``Agent run: {name!r}``), and pending spans.

https://logfire.pydantic.dev/docs/
"""

from __future__ import annotations

from queenright.instrumentation.conventions.kind import Kind

ATTRIBUTES = {
    "arguments": ("input",),
    "result": ("output",),
    # Only on pending spans. One is sent as a child when a span starts, and names that span's parent.
    "pending_parent": ("logfire.pending_parent_id",),
}

SPAN_NAMES = (
    ("Agent run: ", Kind.AGENT),
    ("Chat Completion with ", Kind.LLM),
    ("Chat completion with ", Kind.LLM),
    ("Function: ", Kind.TOOL),
    ("Message with ", Kind.LLM),
    ("Responses API with ", Kind.LLM),
)
