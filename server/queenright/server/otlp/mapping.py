"""
Which attribute says what, and which span is what: one table for every generation of the GenAI names.

The conventions have been renamed several times and none of them is stable, so
whatever a framework writes is looked up here and nowhere else. Rows name our
field, then the spellings it arrives under, the current one first.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from queenright.instrumentation import names


class Kind(StrEnum):
    """What a span is a record of."""

    AGENT = "agent"
    STEP = "step"
    LLM = "llm"
    TOOL = "tool"


ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = {
    # Who it was.
    "agent": (names.GEN_AI_AGENT_NAME, "agent_name", "agent.name", "ai.telemetry.functionId"),
    "session": (names.GEN_AI_CONVERSATION_ID, "session.id", "traceloop.association.properties.session_id"),
    "incarnation": (names.INCARNATION_ID,),
    "graph": (names.GRAPH_ID,),
    "node": (names.NODE_ID, "graph.node.id"),
    # What it was.
    "operation": (names.GEN_AI_OPERATION_NAME,),
    "marker": ("openinference.span.kind", "traceloop.span.kind", "llm.request.type", "ai.operationId"),
    "entity": ("traceloop.entity.name",),
    # A model was called.
    "model": (
        names.GEN_AI_REQUEST_MODEL,
        "gen_ai.response.model",
        "llm.request.model",
        "llm.model_name",
        "ai.model.id",
    ),
    "provider": (
        names.GEN_AI_PROVIDER_NAME,
        "gen_ai.system",
        "llm.provider",
        "llm.vendor",
        "ai.model.provider",
    ),
    "input_tokens": (
        names.GEN_AI_USAGE_INPUT_TOKENS,
        "gen_ai.usage.prompt_tokens",
        "llm.usage.prompt_tokens",
        "llm.token_count.prompt",
        "ai.usage.promptTokens",
    ),
    "output_tokens": (
        names.GEN_AI_USAGE_OUTPUT_TOKENS,
        "gen_ai.usage.completion_tokens",
        "llm.usage.completion_tokens",
        "llm.token_count.completion",
        "ai.usage.completionTokens",
    ),
    # A tool was called.
    "tool": (names.GEN_AI_TOOL_NAME, "tool.name", "ai.toolCall.name"),
    "call_id": (names.GEN_AI_TOOL_CALL_ID, "tool_call.id", "ai.toolCall.id"),
    "arguments": (
        names.GEN_AI_TOOL_CALL_ARGUMENTS,
        "tool_arguments",
        "gcp.vertex.agent.tool_call_args",
        "ai.toolCall.args",
        "traceloop.entity.input",
        "input.value",
    ),
    "result": (
        names.GEN_AI_TOOL_CALL_RESULT,
        "tool_response",
        "gcp.vertex.agent.tool_response",
        "ai.toolCall.result",
        "traceloop.entity.output",
        "output.value",
    ),
    "arguments_hash": (names.TOOL_ARGUMENTS_HASH,),
    "result_hash": (names.TOOL_RESULT_HASH,),
    "timeout": (names.TOOL_TIMEOUT,),
    # A step ended.
    "index": (names.STEP_INDEX,),
    "verdict": (names.STEP_VERDICT,),
    "feedback": (names.STEP_FEEDBACK,),
    # How it went wrong.
    "error_type": (names.ERROR_TYPE,),
    # What only our own records say.
    "event": ("event.name",),
    "framework": (names.FRAMEWORK,),
    "version": (names.GEN_AI_AGENT_VERSION,),
    "heartbeat_interval": (names.HEARTBEAT_INTERVAL,),
    "phase": (names.HEARTBEAT_PHASE,),
    "progress": (names.HEARTBEAT_PROGRESS,),
    "last_tool_call": (names.HEARTBEAT_LAST_TOOL_CALL,),
    "token_count": (names.HEARTBEAT_TOKEN_COUNT,),
    "error_count": (names.HEARTBEAT_ERROR_COUNT,),
    "task": (names.TASK_ID,),
    "repeatable": (names.TASK_REPEATABLE,),
    "control": (names.CONTROL,),
    "waiting_reason": (names.WAITING_REASON,),
    "checkpoint": (names.CHECKPOINT_ID,),
    "files_changed": (names.OUTPUT_FILES_CHANGED,),
    "tests_passed": (names.OUTPUT_TESTS_PASSED,),
    "tests_failed": (names.OUTPUT_TESTS_FAILED,),
}
"""Our field -> the attribute names it is read from, the current one first."""

RESOURCE_ATTRIBUTES: Final[Mapping[str, str]] = {
    "service": names.SERVICE_NAME,
    "instance": names.SERVICE_INSTANCE_ID,
    "agent": names.GEN_AI_AGENT_NAME,
    "incarnation": names.INCARNATION_ID,
}

PROCESS_ATTRIBUTES: Final[frozenset[str]] = frozenset(
    {
        "service.namespace",
        names.SERVICE_NAME,
        "host.id",
        "host.name",
        "container.id",
        "k8s.pod.uid",
        "k8s.pod.name",
        "process.pid",
        "process.creation.time",
    }
)
"""What tells one process from another where no ``service.instance.id`` is set."""

EXCEPTION_EVENT: Final = "exception"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"

OPERATIONS: Final[Mapping[str, Kind]] = {
    names.Operation.INVOKE_AGENT: Kind.AGENT,
    names.Operation.CHAT: Kind.LLM,
    "text_completion": Kind.LLM,
    "completion": Kind.LLM,
    "generate_content": Kind.LLM,
    names.Operation.EXECUTE_TOOL: Kind.TOOL,
}
"""``gen_ai.operation.name``; one that is not here (embeddings, create_agent, …) is nothing a worker did."""

MARKERS: Final[Mapping[str, Kind]] = {
    # openinference.span.kind and traceloop.span.kind
    "agent": Kind.AGENT,
    "llm": Kind.LLM,
    "tool": Kind.TOOL,
    # llm.request.type
    "chat": Kind.LLM,
    "completion": Kind.LLM,
    # ai.operationId
    "ai.generatetext": Kind.AGENT,
    "ai.streamtext": Kind.AGENT,
    "ai.generatetext.dogenerate": Kind.LLM,
    "ai.streamtext.dostream": Kind.LLM,
    "ai.toolcall": Kind.TOOL,
}
"""How other conventions mark the kind of a span; compared in lower case."""

SPAN_NAMES: Final[tuple[tuple[str, Kind], ...]] = (
    (f"{names.Operation.CHAT} ", Kind.LLM),
    ("text_completion ", Kind.LLM),
    ("generate_content ", Kind.LLM),
    (f"{names.Operation.EXECUTE_TOOL} ", Kind.TOOL),
    ("running tool: ", Kind.TOOL),
    (f"{names.Operation.INVOKE_AGENT} ", Kind.AGENT),
    ("agent run ", Kind.AGENT),
)
"""How the names of spans begin that say nothing of their operation; what follows is the name of the thing."""

_BARE_NAMES: Final[Mapping[str, Kind]] = {"running tool": Kind.TOOL, "agent run": Kind.AGENT}

LOOKUP: Final[Mapping[str, tuple[str, bool]]] = {
    name: (field, name == spellings[0]) for field, spellings in ATTRIBUTES.items() for name in spellings
}
"""Attribute name -> our field, and whether it is the current spelling (which wins over older ones)."""


def kind_of(operation: str, marker: str, name: str) -> Kind | None:
    """
    Say what a span of any framework but ours is, or None if it is nothing a worker did.

    Args:
        operation: Its ``gen_ai.operation.name``, or "".
        marker: What another convention marks it with, or "".
        name: The span's name, asked only if neither of the others is there.
    """
    if operation:
        return OPERATIONS.get(operation)
    if marker:
        return MARKERS.get(marker.lower())
    for prefix, kind in SPAN_NAMES:
        if name.startswith(prefix):
            return kind
    return _BARE_NAMES.get(name)


def named_in(name: str) -> str:
    """Return the thing a span's name names (``execute_tool search`` -> ``search``), or ""."""
    for prefix, _ in SPAN_NAMES:
        if name.startswith(prefix):
            return name[len(prefix) :].strip()
    return ""
