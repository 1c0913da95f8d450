"""
Mask secrets in a model's replies before they are stored.

The data that a model gets is already masked, but a model may decode a secret from encoded text. Its replies
are stored in conversations, traces and tickets.
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
    """Mask the texts in a JSON document. Return it unchanged if there is nothing to mask."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return str(sanitise(text))
    result = _mask_value(value)
    return text if result == value else json.dumps(result, ensure_ascii=False)


def _mask_value(value: Any) -> Any:
    if isinstance(value, str):
        # A ticket may be JSON in a string. Masking that string as a whole could break the JSON.
        return _mask(value) if value.lstrip()[:1] in ("{", "[") else sanitise(value)
    if isinstance(value, dict):
        return {sanitise(key): _mask_value(item) for key, item in value.items()}
    return [_mask_value(item) for item in value] if isinstance(value, list) else value


_NAME: Final = re.compile(r"(?i)pass|pwd|secret|credential|key|token|sig|auth|cookie|bearer|basic")
"""Words before a secret that has several words, or that can be recognized only by these words."""
_BLOCK: Final = re.compile(r"(?i)curl|mysql|mariadb|-----|<|lt;")
"""Markers of a passage that may contain a secret of several sentences."""
_WORDS: Final = re.compile(r".*\s", re.DOTALL)
_SENTENCE_END: Final = re.compile(r"[.!?][)\"'*_`]*\s|(?<![\s:=,(\[{\\>*_~-])[ \t]*\n")


class MaskedStream:
    """
    Passes on masked text, up to the point where later text could still change the mask.

    Args:
        on_text: Called with each piece of masked text.
    """

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._text = ""
        self._end = 0
        """The length of the text that was passed on, before masking."""
        self._passed_text = ""
        self._is_broken = False
        """Whether the mask of text that was passed on has changed. If so, no more text is passed on."""

    def add(self, piece: str) -> None:
        """Add a piece of text."""
        # A control character could hide the name of a secret.
        self._text += "".join(c for c in piece if c.isprintable() or c.isspace())
        end = self._find_end()
        if end <= self._end or self._is_broken:
            return
        text = str(sanitise(self._text[:end]))
        self._end = end
        if not text.startswith(self._passed_text):
            self._is_broken = True
            return
        if new_text := text[len(self._passed_text) :]:
            self._passed_text = text
            self._on_text(new_text)

    def finish(self, text: str) -> None:
        """Pass on the remaining part of ``text``, which is the complete masked text."""
        if not self._is_broken and text.startswith(self._passed_text) and text != self._passed_text:
            self._on_text(text[len(self._passed_text) :])

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
