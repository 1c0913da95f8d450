"""Google's Agent Development Kit, in addition to the GenAI conventions. https://google.github.io/adk-docs/"""

from __future__ import annotations

ATTRIBUTES = {
    "arguments": ("gcp.vertex.agent.tool_call_args",),
    "result": ("gcp.vertex.agent.tool_response",),
}
