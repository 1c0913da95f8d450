"""OpenLLMetry (Traceloop). https://www.traceloop.com/docs/openllmetry/contributing/semantic-conventions"""

from __future__ import annotations

from queenright.instrumentation.conventions.kind import Kind

ATTRIBUTES = {
    "agent": ("traceloop.association.properties.lc_agent_name",),
    "session": ("traceloop.association.properties.session_id",),
    "marker": ("traceloop.span.kind", "llm.request.type"),
    "entity": ("traceloop.entity.name",),
    "model": ("llm.request.model",),
    "provider": ("llm.vendor",),
    "input_tokens": ("llm.usage.prompt_tokens",),
    "output_tokens": ("llm.usage.completion_tokens",),
    "arguments": ("traceloop.entity.input",),
    "result": ("traceloop.entity.output",),
}

MARKERS = {
    # traceloop.span.kind
    "agent": Kind.AGENT,
    "tool": Kind.TOOL,
    # llm.request.type
    "chat": Kind.LLM,
    "completion": Kind.LLM,
}
NO_WORK = ("embedding", "rerank", "task", "workflow")
