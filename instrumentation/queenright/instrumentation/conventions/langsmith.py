"""LangSmith's OpenTelemetry export. https://docs.langchain.com/langsmith/trace-with-opentelemetry"""

from __future__ import annotations

ATTRIBUTES = {
    "agent": ("langsmith.metadata.lc_agent_name",),
    "session": ("langsmith.metadata.thread_id", "langsmith.metadata.session_id"),
    "usage": ("langsmith.metadata.usage_metadata",),
}
"""``usage`` is an object in JSON: it is there where the counts are hidden with the content."""
