"""
The GenAI semantic conventions of OpenTelemetry, with all earlier names.

The names are not stable and have changed several times. pydantic-ai, Strands and the GenAI
instrumentations use them.
https://opentelemetry.io/docs/specs/semconv/gen-ai/
"""

from __future__ import annotations

from queenright.instrumentation import names
from queenright.instrumentation.conventions.kind import Kind

ATTRIBUTES = {
    "agent": (names.GEN_AI_AGENT_NAME,),
    "session": (names.GEN_AI_CONVERSATION_ID,),
    "operation": (names.GEN_AI_OPERATION_NAME,),
    "response_id": ("gen_ai.response.id",),
    "model": (names.GEN_AI_REQUEST_MODEL, "gen_ai.response.model"),
    "provider": (names.GEN_AI_PROVIDER_NAME, "gen_ai.system"),
    "input_tokens": (names.GEN_AI_USAGE_INPUT_TOKENS, "gen_ai.usage.prompt_tokens"),
    "output_tokens": (names.GEN_AI_USAGE_OUTPUT_TOKENS, "gen_ai.usage.completion_tokens"),
    "cache_read_tokens": ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"),
    "cache_write_tokens": (
        "gen_ai.usage.cache_creation.input_tokens",
        "gen_ai.usage.cache_creation_input_tokens",
    ),
    "finish_reasons": (names.GEN_AI_RESPONSE_FINISH_REASONS,),
    "tool": (names.GEN_AI_TOOL_NAME,),
    "call_id": (names.GEN_AI_TOOL_CALL_ID,),
    "arguments": (names.GEN_AI_TOOL_CALL_ARGUMENTS, "gen_ai.input.messages", "gen_ai.prompt"),
    "result": (names.GEN_AI_TOOL_CALL_RESULT, "gen_ai.output.messages", "gen_ai.completion"),
    "error_type": (names.ERROR_TYPE,),
    "version": (names.GEN_AI_AGENT_VERSION,),
}

OPERATIONS = {
    names.Operation.INVOKE_AGENT: Kind.AGENT,
    names.Operation.CHAT: Kind.LLM,
    "text_completion": Kind.LLM,
    "completion": Kind.LLM,
    "generate_content": Kind.LLM,
    names.Operation.EXECUTE_TOOL: Kind.TOOL,
}

SPAN_NAMES = (
    (f"{names.Operation.CHAT} ", Kind.LLM),
    ("text_completion ", Kind.LLM),
    ("generate_content ", Kind.LLM),
    (f"{names.Operation.EXECUTE_TOOL} ", Kind.TOOL),
    (f"{names.Operation.INVOKE_AGENT} ", Kind.AGENT),
)

CONTENT_EVENTS = {
    "gen_ai.tool.message": (("arguments", ("content",)),),
    "gen_ai.choice": (("result", ("message", "content")),),
    "gen_ai.client.inference.operation.details": (
        ("arguments", ("gen_ai.input.messages",)),
        ("result", ("gen_ai.output.messages",)),
    ),
}
