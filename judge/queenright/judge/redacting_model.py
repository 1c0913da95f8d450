"""
Mask secrets in a model's replies before they are stored.

The data shown to a model is masked already, but a model may decode a secret from encoded text. Its replies go
to conversations on disk, traces and tickets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from queenright.judge.masked_stream import MaskedStream
from queenright.judge.quoting import sanitise
from queenright.runtime.llm.model import LLMProvider, Message, ModelReply, OnText, ToolSpec


class RedactingModel:
    """A model whose replies are masked, also while they are streamed (``MaskedStream``)."""

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
        stream = None if on_text is None else MaskedStream(on_text)
        reply = await self._model.complete(messages, tools, None if stream is None else stream.add)
        calls = tuple(replace(call, arguments=_mask(call.arguments)) for call in reply.tool_calls)
        text = sanitise(reply.text)
        if stream is not None:
            stream.finish(text)
        return replace(reply, text=text, tool_calls=calls)


def _mask(text: str) -> str:
    """Return JSON with its texts masked, unchanged if there is nothing to mask."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return str(sanitise(text))
    masked = _masked_value(value)
    return text if masked == value else json.dumps(masked, ensure_ascii=False)


def _masked_value(value: Any) -> Any:
    if isinstance(value, str):
        # A ticket is JSON in a string: masking the string as a whole could break the JSON.
        return _mask(value) if value.lstrip()[:1] in ("{", "[") else sanitise(value)
    if isinstance(value, dict):
        return {sanitise(key): _masked_value(item) for key, item in value.items()}
    return [_masked_value(item) for item in value] if isinstance(value, list) else value
