"""
Which attribute says what, for every generation of the GenAI names.

What identifies a span is read in the agent's process too, so those rows are
`queenright.instrumentation.span_kinds`; it also says which span is what.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from queenright.instrumentation import names
from queenright.instrumentation.span_kinds import IDENTIFYING

ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = {
    # Who it was.
    "agent": IDENTIFYING["agent"],
    "session": IDENTIFYING["session"],
    "incarnation": (names.INCARNATION_ID,),
    "graph": (names.GRAPH_ID,),
    "node": (names.NODE_ID, "graph.node.id"),
    # What it was.
    "operation": IDENTIFYING["operation"],
    "marker": IDENTIFYING["marker"],
    "entity": IDENTIFYING["entity"],
    # A model was called.
    "model": IDENTIFYING["model"],
    "provider": IDENTIFYING["provider"],
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
    "tool": IDENTIFYING["tool"],
    "call_id": IDENTIFYING["call_id"],
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

LOOKUP: Final[Mapping[str, tuple[str, bool]]] = {
    name: (field, name == spellings[0]) for field, spellings in ATTRIBUTES.items() for name in spellings
}
"""Attribute name -> our field, and whether it is the current spelling (which wins over older ones)."""
