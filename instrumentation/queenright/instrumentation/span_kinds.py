"""
What a span of any framework is, and which attributes say whose it is, in every generation of the names.

The agent's process decides with it which open spans to report, the service what a
span means. The conventions have been renamed several times and none of them is
stable, so whatever a framework writes is looked up here and nowhere else.
"""

from __future__ import annotations

import re
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


IDENTIFYING: Final[Mapping[str, tuple[str, ...]]] = {
    # Who it was.
    "agent": (names.GEN_AI_AGENT_NAME, "agent_name", "agent.name", "ai.telemetry.functionId"),
    "session": (names.GEN_AI_CONVERSATION_ID, "session.id", "traceloop.association.properties.session_id"),
    # What it was.
    "operation": (names.GEN_AI_OPERATION_NAME,),
    "marker": ("openinference.span.kind", "traceloop.span.kind", "llm.request.type", "ai.operationId"),
    "entity": ("traceloop.entity.name",),
    # Which model, which tool.
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
    "tool": (names.GEN_AI_TOOL_NAME, "tool.name", "ai.toolCall.name"),
    "call_id": (names.GEN_AI_TOOL_CALL_ID, "tool_call.id", "ai.toolCall.id"),
}
"""Our field -> the attribute names it is read from, the current one first. No content is among them."""

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

TEMPLATES: Final[Mapping[str, Kind]] = {
    "Agent run:": Kind.AGENT,
    "Chat Completion with": Kind.LLM,
    "Chat completion with": Kind.LLM,
    "Function:": Kind.TOOL,
    "Responses API with": Kind.LLM,
}
"""Logfire names spans by templates such as ``Agent run: {name!r}``: what stands before the only field."""

_TEMPLATE: Final = re.compile(r"([^{}]+) \{([^{}!:]+)(?:!r)?\}")

_BARE_NAMES: Final[Mapping[str, Kind]] = {"running tool": Kind.TOOL, "agent run": Kind.AGENT}

AGENT_SCOPES: Final[tuple[str, ...]] = ("openinference.instrumentation.",)
"""
How the names of instrumentation scopes begin all of whose spans are an agent's work.

Some of these libraries say what a span is only when it ends; while it is open, its scope is all there is.
"""


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


def template_in(name: str) -> tuple[Kind, str] | None:
    """Return what a span is whose name is a known template, and the attribute that fills it; else None."""
    found = _TEMPLATE.fullmatch(name)
    if found is None or (kind := TEMPLATES.get(found[1])) is None:
        return None
    return kind, found[2]
