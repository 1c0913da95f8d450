"""
A model's own words without secrets, before anything keeps them.

What a model is shown has none that can be recognised; but one that takes encoded text apart may find some,
and its words go to conversations on the disk, to traces and to tickets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from queenright.judge.quoting import harmless
from queenright.runtime.llm.model import LLMProvider, Message, ModelReply, OnText, ToolSpec


class RedactingModel:
    """A model whose answers are masked. Their pieces are not told: half of a secret cannot be recognised."""

    def __init__(self, model: LLMProvider) -> None:
        self._model = model

    @property
    def name(self) -> str:
        """The model's own name."""
        return self._model.name

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """See ``LLMProvider``."""
        reply = await self._model.complete(messages, tools, None if on_text is None else _not_told)
        calls = tuple(replace(call, arguments=_masked(call.arguments)) for call in reply.tool_calls)
        return replace(reply, text=harmless(reply.text), tool_calls=calls)


def _not_told(piece: str) -> None:
    pass


def _masked(text: str) -> str:
    """Return JSON with its texts masked, and byte for byte what it was if there is nothing to mask."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return str(harmless(text))
    masked = _masked_value(value)
    return text if masked == value else json.dumps(masked, ensure_ascii=False)


def _masked_value(value: Any) -> Any:
    if isinstance(value, str):
        # A ticket comes as JSON in a text: masked as one text, it might be no JSON any more.
        return _masked(value) if value.lstrip()[:1] in ("{", "[") else harmless(value)
    if isinstance(value, dict):
        return {harmless(key): _masked_value(one) for key, one in value.items()}
    return [_masked_value(one) for one in value] if isinstance(value, list) else value
