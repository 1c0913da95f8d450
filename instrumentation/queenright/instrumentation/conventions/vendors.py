"""Naming conventions of spans and attributes, by vendor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from queenright.instrumentation import names


class Kind(StrEnum):
    """The kind of work that a span records."""

    AGENT = "agent"
    STEP = "step"
    LLM = "llm"
    TOOL = "tool"


@dataclass(frozen=True, kw_only=True)
class Convention:
    """A naming convention of spans and attributes."""

    attributes: Mapping[str, tuple[str, ...]]
    """Our field -> attribute names to read it from, in order of preference."""
    operations: Mapping[str, Kind] = field(default_factory=dict)
    """``gen_ai.operation.name`` -> kind."""
    markers: Mapping[str, Kind] = field(default_factory=dict)
    """Value of the ``marker`` attribute, in lower case -> kind."""
    no_work: tuple[str, ...] = ()
    """Values of the ``marker`` attribute, in lower case, that are not an agent's work."""
    content_events: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = field(default_factory=dict)
    """Event of a tool call's span -> its fields, each with the event attributes to read, best first."""
    span_names: tuple[tuple[str, Kind], ...] = ()
    """Prefix of a span's name -> kind, if nothing else gives it; the rest of the name is the subject."""
    bare_span_names: Mapping[str, Kind] = field(default_factory=dict)
    """Whole name of a span -> kind."""
    scopes: tuple[str, ...] = ()
    """Prefixes of instrumentation scopes whose spans are all an agent's work."""


# The GenAI semantic conventions of OpenTelemetry, with all earlier names.
#
# The names are not stable and have changed several times. pydantic-ai, Strands and the GenAI
# instrumentations use them.
# https://opentelemetry.io/docs/specs/semconv/gen-ai/
_GENAI: Final = Convention(
    attributes={
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
    },
    operations={
        names.Operation.INVOKE_AGENT: Kind.AGENT,
        names.Operation.CHAT: Kind.LLM,
        "text_completion": Kind.LLM,
        "completion": Kind.LLM,
        "generate_content": Kind.LLM,
        names.Operation.EXECUTE_TOOL: Kind.TOOL,
    },
    span_names=(
        (f"{names.Operation.CHAT} ", Kind.LLM),
        ("text_completion ", Kind.LLM),
        ("generate_content ", Kind.LLM),
        (f"{names.Operation.EXECUTE_TOOL} ", Kind.TOOL),
        (f"{names.Operation.INVOKE_AGENT} ", Kind.AGENT),
    ),
    content_events={
        "gen_ai.tool.message": (("arguments", ("content",)),),
        "gen_ai.choice": (("result", ("message", "content")),),
        "gen_ai.client.inference.operation.details": (
            ("arguments", ("gen_ai.input.messages",)),
            ("result", ("gen_ai.output.messages",)),
        ),
    },
)

# pydantic-ai versions without ``gen_ai.operation.name``. https://ai.pydantic.dev/logfire/
_PYDANTIC_AI: Final = Convention(
    attributes={
        "agent": ("agent_name",),
        "arguments": ("tool_arguments",),
        "result": ("tool_response",),
    },
    span_names=(
        ("running tool: ", Kind.TOOL),
        ("agent run ", Kind.AGENT),
    ),
    bare_span_names={"running tool": Kind.TOOL, "agent run": Kind.AGENT},
)

# Google's Agent Development Kit, in addition to the GenAI conventions. https://google.github.io/adk-docs/
_GOOGLE_ADK: Final = Convention(
    attributes={
        "arguments": ("gcp.vertex.agent.tool_call_args",),
        "result": ("gcp.vertex.agent.tool_response",),
    },
)

# Vercel's AI SDK. https://ai-sdk.dev/docs/ai-sdk-core/telemetry
_VERCEL_AI_SDK: Final = Convention(
    attributes={
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
    },
    markers={
        "ai.generatetext": Kind.AGENT,
        "ai.streamtext": Kind.AGENT,
        "ai.generatetext.dogenerate": Kind.LLM,
        "ai.streamtext.dostream": Kind.LLM,
        "ai.toolcall": Kind.TOOL,
    },
)

# OpenLLMetry (Traceloop). https://www.traceloop.com/docs/openllmetry/contributing/semantic-conventions
_OPENLLMETRY: Final = Convention(
    attributes={
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
    },
    markers={
        # traceloop.span.kind
        "agent": Kind.AGENT,
        "tool": Kind.TOOL,
        # llm.request.type
        "chat": Kind.LLM,
        "completion": Kind.LLM,
    },
    no_work=("embedding", "rerank", "task", "workflow"),
)

# OpenInference (Arize Phoenix). https://arize-ai.github.io/openinference/spec/semantic_conventions.html
_OPENINFERENCE: Final = Convention(
    attributes={
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
    },
    markers={"agent": Kind.AGENT, "llm": Kind.LLM, "tool": Kind.TOOL},
    no_work=("chain", "embedding", "evaluator", "guardrail", "prompt", "reranker", "retriever", "unknown"),
    scopes=("openinference.instrumentation.",),
)
"""Some of these set a span's kind only at its end; while it is open, only the scope is known."""

# Logfire: span names that are templates (``Agent run: {name!r}``), and pending spans.
#
# https://logfire.pydantic.dev/docs/
_LOGFIRE: Final = Convention(
    attributes={
        "arguments": ("input",),
        "result": ("output",),
        # Only on pending spans. One is sent as a child when a span starts, and names that span's parent.
        "pending_parent": ("logfire.pending_parent_id",),
    },
    span_names=(
        ("Agent run: ", Kind.AGENT),
        ("Chat Completion with ", Kind.LLM),
        ("Chat completion with ", Kind.LLM),
        ("Function: ", Kind.TOOL),
        ("Message with ", Kind.LLM),
        ("Responses API with ", Kind.LLM),
    ),
)

# LangSmith's OpenTelemetry export. https://docs.langchain.com/langsmith/trace-with-opentelemetry
_LANGSMITH: Final = Convention(
    attributes={
        "agent": ("langsmith.metadata.lc_agent_name",),
        "session": ("langsmith.metadata.thread_id", "langsmith.metadata.session_id"),
        "usage": ("langsmith.metadata.usage_metadata",),
    },
)
"""``usage`` is a JSON object; it is present even if the token counts are hidden with the content."""

# The Model Context Protocol: a client's span for a tool call, inside or instead of the framework's span.
#
# https://opentelemetry.io/docs/specs/semconv/gen-ai/mcp/
_MCP: Final = Convention(
    attributes={"tool": ("mcp.tool.name",)},
    span_names=(("tools/call ", Kind.TOOL),),
)

# Attributes of tracing products (Langfuse, LangSmith, MLflow) and of libraries without a convention.
_OBSERVABILITY: Final = Convention(
    attributes={
        "marker": (
            "gen_ai.span.kind",
            "langfuse.observation.type",
            "langsmith.span.kind",
            "mlflow.spanType",
            "span.type",
        ),
        "error_type": ("exception.type",),
        "error": ("error.message", "exception.message", "error"),
    },
    no_work=("event", "parser", "span"),
    content_events={
        "tool.input": (("arguments", ("input", "content", "value")),),
        "tool.output": (("result", ("output", "content", "result", "value")),),
    },
)
"""Events of tool calls: our field, and the event attributes to read it from, in order of preference."""

# Partial spans: log records about open spans, sent by the PartialSpanProcessors of several languages.
#
# https://github.com/open-telemetry/opentelemetry-python-contrib/pull/3564
_PARTIAL_SPANS: Final = Convention(
    attributes={"partial_event": ("partial.event",)},
)
"""``heartbeat`` while a span is open, ``stop`` when it has ended; the record's body is the span."""

CONVENTIONS: Final = (
    _GENAI,
    _PYDANTIC_AI,
    _GOOGLE_ADK,
    _VERCEL_AI_SDK,
    _OPENLLMETRY,
    _OPENINFERENCE,
    _LOGFIRE,
    _LANGSMITH,
    _MCP,
    _OBSERVABILITY,
    _PARTIAL_SPANS,
)
"""In order of precedence."""
