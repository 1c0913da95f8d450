"""Builds litellm requests: messages and tools in OpenAI's format, with prompt cache markers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from queenright.runtime.llm.model import Message, ToolSpec

_MARKED_CLOUDS: Final = frozenset({"anthropic", "bedrock", "vertex_ai", "openrouter"})
"""litellm providers that serve Claude and support Anthropic's cache markers."""


def to_openai_messages(messages: Sequence[Message], *, marked: bool) -> list[dict[str, Any]]:
    """
    Convert a conversation, oldest message first.

    Args:
        marked: Mark the prefix that the next request repeats: the system prompt and the last message. The
            system prompt's marker also covers the tools, which these providers read before it.
    """
    rows = [_to_openai(message) for message in messages]
    if marked and rows:
        for row in (rows[0], rows[-1]):
            if row["content"]:
                row["cache_control"] = {"type": "ephemeral"}
    return rows


def to_openai_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Convert tools, in order: the prefix before a conversation must not change."""
    return [_tool_to_openai(tool) for tool in tools]


def needs_cache_markers(name: str) -> bool:
    """Return whether a model's provider caches prompts only where marked; others do so automatically."""
    provider, slash, model = name.lower().rpartition("/")
    if not slash:
        return model.startswith("claude")
    cloud = provider.partition("/")[0]
    return (cloud in _MARKED_CLOUDS and "claude" in model) or (cloud == "bedrock" and "nova" in model)


def _to_openai(message: Message) -> dict[str, Any]:
    # A lone surrogate, for example from a file name, cannot be sent.
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
    """Return arguments that every provider accepts: anything but a JSON object is wrapped in one."""
    try:
        if isinstance(json.loads(arguments or "{}"), dict):
            return (arguments or "{}").encode("utf-8", "replace").decode()
    except (ValueError, RecursionError):
        pass
    return json.dumps({"malformed": arguments})


def _tool_to_openai(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
