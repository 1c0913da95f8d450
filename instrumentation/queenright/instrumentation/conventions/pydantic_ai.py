"""pydantic-ai versions without ``gen_ai.operation.name``. https://ai.pydantic.dev/logfire/"""

from __future__ import annotations

from queenright.instrumentation.conventions.kind import Kind

ATTRIBUTES = {
    "agent": ("agent_name",),
    "arguments": ("tool_arguments",),
    "result": ("tool_response",),
}

SPAN_NAMES = (
    ("running tool: ", Kind.TOOL),
    ("agent run ", Kind.AGENT),
)

BARE_SPAN_NAMES = {"running tool": Kind.TOOL, "agent run": Kind.AGENT}
