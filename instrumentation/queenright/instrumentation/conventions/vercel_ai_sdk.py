"""Vercel's AI SDK. https://ai-sdk.dev/docs/ai-sdk-core/telemetry"""

from __future__ import annotations

from queenright.instrumentation.conventions.kind import Kind

ATTRIBUTES = {
    "agent": ("ai.telemetry.functionId",),
    "marker": ("ai.operationId",),
    "model": ("ai.model.id",),
    "provider": ("ai.model.provider",),
    "input_tokens": ("ai.usage.promptTokens",),
    "output_tokens": ("ai.usage.completionTokens",),
    "tool": ("ai.toolCall.name",),
    "call_id": ("ai.toolCall.id",),
    "arguments": ("ai.toolCall.args",),
    "result": ("ai.toolCall.result",),
}

MARKERS = {
    "ai.generatetext": Kind.AGENT,
    "ai.streamtext": Kind.AGENT,
    "ai.generatetext.dogenerate": Kind.LLM,
    "ai.streamtext.dostream": Kind.LLM,
    "ai.toolcall": Kind.TOOL,
}
