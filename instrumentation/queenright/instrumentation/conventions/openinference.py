"""OpenInference (Arize Phoenix). https://arize-ai.github.io/openinference/spec/semantic_conventions.html"""

from __future__ import annotations

from queenright.instrumentation.conventions.kind import Kind

ATTRIBUTES = {
    "agent": ("agent.name",),
    "session": ("session.id",),
    "node": ("graph.node.id",),
    "marker": ("openinference.span.kind",),
    "model": ("llm.model_name",),
    "provider": ("llm.provider",),
    "input_tokens": ("llm.token_count.prompt",),
    "output_tokens": ("llm.token_count.completion",),
    "cache_read_tokens": ("llm.token_count.prompt_details.cache_read",),
    "cache_write_tokens": ("llm.token_count.prompt_details.cache_write",),
    "tool": ("tool.name",),
    "call_id": ("tool_call.id",),
    "arguments": ("input.value",),
    "result": ("output.value",),
    "metadata": ("metadata",),
}

MARKERS = {"agent": Kind.AGENT, "llm": Kind.LLM, "tool": Kind.TOOL}
NO_WORK = ("chain", "embedding", "evaluator", "guardrail", "prompt", "reranker", "retriever", "unknown")

SCOPES = ("openinference.instrumentation.",)
"""Some of these set a span's kind only at its end; while it is open, only the scope is known."""
