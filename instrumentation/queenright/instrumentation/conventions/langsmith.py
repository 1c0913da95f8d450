"""LangSmith's OpenTelemetry export. https://docs.langchain.com/langsmith/trace-with-opentelemetry"""

from __future__ import annotations

ATTRIBUTES = {
    "agent": ("langsmith.metadata.lc_agent_name",),
    "session": ("langsmith.metadata.thread_id", "langsmith.metadata.session_id"),
    "usage": ("langsmith.metadata.usage_metadata",),
}
"""``usage`` is a JSON object; it is present even if the token counts are hidden with the content."""
