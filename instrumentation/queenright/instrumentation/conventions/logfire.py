"""Logfire, where it names spans by templates such as ``Agent run: {name!r}``. https://logfire.pydantic.dev/docs/"""

from __future__ import annotations

from queenright.instrumentation.conventions.kind import Kind

ATTRIBUTES: dict[str, tuple[str, ...]] = {}

TEMPLATES = {
    "Agent run:": Kind.AGENT,
    "Chat Completion with": Kind.LLM,
    "Chat completion with": Kind.LLM,
    "Function:": Kind.TOOL,
    "Responses API with": Kind.LLM,
}
"""What stands before the only field of a template."""
