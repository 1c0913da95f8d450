"""
Mask secrets in a model's replies before they are stored.

The data shown to a model is masked already, but a model may decode a secret from encoded text. Its replies go
to conversations on disk, traces and tickets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from queenright.instrumentation.redaction import cut_before_hidden
from queenright.judge.quoting import sanitise
from queenright.runtime.llm.model import LLMProvider, Message, ModelReply, OnText, ToolSpec


class RedactingModel:
    """A model whose replies are masked, even while they are streamed (``MaskedStream``)."""

    def __init__(self, model: LLMProvider) -> None:
        self._model = model

    @property
    def name(self) -> str:
        """The name of the model."""
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
    """Mask the texts in a JSON document; return it unchanged if there is nothing to mask."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return str(sanitise(text))
    result = _masked_value(value)
    return text if result == value else json.dumps(result, ensure_ascii=False)


def _masked_value(value: Any) -> Any:
    if isinstance(value, str):
        # A ticket is JSON in a string; masking that string as a whole could break the JSON.
        return _mask(value) if value.lstrip()[:1] in ("{", "[") else sanitise(value)
    if isinstance(value, dict):
        return {sanitise(key): _masked_value(item) for key, item in value.items()}
    return [_masked_value(item) for item in value] if isinstance(value, list) else value


_NAME: Final = re.compile(r"(?i)pass|pwd|secret|credential|key|token|sig|auth|cookie|bearer|basic")
"""Words before a secret of several words, or one that only these words identify."""
_BLOCK: Final = re.compile(r"(?i)curl|mysql|mariadb|-----|<|lt;")
"""Markers that may enclose a secret of several sentences."""
_WORDS: Final = re.compile(r".*\s", re.DOTALL)
_SENTENCE_END: Final = re.compile(r"[.!?][)\"'*_`]*\s|(?<![\s:=,(\[{\\>*_~-])[ \t]*\n")


class MaskedStream:
    """
    Passes masked text on, as far as later text cannot change the mask.

    Args:
        on_text: Receives the masked pieces.
    """

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._text = ""
        self._end = 0
        """Length of the text that was passed on."""
        self._text_out = ""
        self._is_broken = False
        """Whether the mask of text already passed on has changed; then no more is passed on."""

    def add(self, piece: str) -> None:
        """Add a piece of text."""
        # A control character could hide the name of a secret.
        self._text += "".join(c for c in piece if c.isprintable() or c.isspace())
        end = self._find_end()
        if end <= self._end or self._is_broken:
            return
        text = str(sanitise(self._text[:end]))
        self._end = end
        if not text.startswith(self._text_out):
            self._is_broken = True
            return
        if more := text[len(self._text_out) :]:
            self._text_out = text
            self._on_text(more)

    def finish(self, text: str) -> None:
        """Pass on the rest of ``text``, the complete masked text."""
        if not self._is_broken and text.startswith(self._text_out) and text != self._text_out:
            self._on_text(text[len(self._text_out) :])

    def _find_end(self) -> int:
        """Return the length of the text that can be passed on."""
        text, end = self._text, self._end
        block = _BLOCK.search(text, end)
        limit = block.start() if block else len(text)
        while name := _NAME.search(text, end, limit):
            sentence = _SENTENCE_END.search(text, name.end(), limit)
            if sentence is None:
                limit = name.start()
                break
            end = sentence.end()
        words = _WORDS.match(text, end, limit)
        return cut_before_hidden(text, words.end() if words else end)
