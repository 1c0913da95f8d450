"""What litellm is asked: a conversation and its tools in OpenAI's words, marked for providers that cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from queenright.runtime.llm.model import Message, ToolSpec

_MARKED_CLOUDS: Final = frozenset({"anthropic", "bedrock", "vertex_ai", "openrouter"})
"""Whose Claude is reached through litellm with the marks that Anthropic asks for."""


def messages_of(messages: Sequence[Message], *, marked: bool) -> list[dict[str, Any]]:
    """
    Return a conversation, oldest first.

    Args:
        messages: The system prompt first.
        marked: Mark what the next question will begin with too: the system prompt, and all until now. The
            mark after the system prompt covers the tools as well, which these providers read before it.
    """
    rows = [_to_openai(message) for message in messages]
    if marked and rows:
        for row in (rows[0], rows[-1]):
            if row["content"]:
                row["cache_control"] = {"type": "ephemeral"}
    return rows


def tools_of(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return tools, in the order given: what comes before a conversation must not change."""
    return [_tool_to_openai(tool) for tool in tools]


def wants_marks(name: str) -> bool:
    """Say whether a model's provider keeps a prompt only where it is marked; others do it unasked."""
    provider, slash, model = name.lower().rpartition("/")
    if not slash:
        return model.startswith("claude")
    cloud = provider.partition("/")[0]
    return (cloud in _MARKED_CLOUDS and "claude" in model) or (cloud == "bedrock" and "nova" in model)


def _to_openai(message: Message) -> dict[str, Any]:
    # A lone surrogate, from a file name for one, cannot be sent.
    content: str | None = message.content.encode("utf-8", "replace").decode()
    row: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        row["content"] = content or None
        row["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _sendable(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        row["tool_call_id"] = message.tool_call_id
    return row


def _sendable(arguments: str) -> str:
    """Return arguments that no provider refuses: what is no JSON object is quoted in one."""
    try:
        if isinstance(json.loads(arguments or "{}"), dict):
            return (arguments or "{}").encode("utf-8", "replace").decode()
    except (ValueError, RecursionError):
        pass
    return json.dumps({"malformed": arguments})


def _tool_to_openai(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
