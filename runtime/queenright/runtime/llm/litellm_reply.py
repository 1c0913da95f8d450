"""Builds a ``ModelReply`` from litellm's response, whole or streamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from queenright.runtime.llm.model import ModelReply, ToolCall


@dataclass(slots=True)
class _Call:
    """A tool call that is still arriving in pieces."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class ReplyAccumulator:
    """
    Accumulates a reply: the pieces of a stream, or a whole response as a single piece.

    Args:
        ids: Generates the id of a tool call without one.
    """

    def __init__(self, ids: Callable[[], str]) -> None:
        self._ids = ids
        self._text: list[str] = []
        self._calls: list[_Call] = []
        self._open_calls: dict[int, _Call] = {}
        self.finish_reason = ""
        """Why the model stopped; empty until the provider says."""
        self.usage: Any = None
        """Token usage, as the provider reports it."""
        self.model = ""

    @property
    def is_empty(self) -> bool:
        """Whether no text and no tool calls have arrived."""
        return not self._text and not self._calls

    def add(self, chunk: Any) -> str:
        """Add one chunk, or a whole response, and return its text."""
        self.model = getattr(chunk, "model", None) or self.model
        self.usage = getattr(chunk, "usage", None) or self.usage
        text = ""
        for choice in getattr(chunk, "choices", None) or ():
            if getattr(choice, "index", 0):
                continue  # an alternative answer, which was not requested
            message = getattr(choice, "delta", None) or getattr(choice, "message", None)
            text += getattr(message, "content", None) or ""
            for position, piece in enumerate(getattr(message, "tool_calls", None) or ()):
                self._add_call(piece, position)
            self.finish_reason = getattr(choice, "finish_reason", None) or self.finish_reason
        if text:
            self._text.append(text)
        return text

    def _add_call(self, piece: Any, position: int) -> None:
        index, call_id = getattr(piece, "index", None), getattr(piece, "id", None) or ""
        index = position if index is None else index
        function = getattr(piece, "function", None)
        call = self._open_calls.get(index)
        # Some servers number every call 0; a different id means a different call.
        if call is None or (call_id and call.id and call_id != call.id):
            call = self._open_calls[index] = _Call()
            self._calls.append(call)
        call.id = call.id or call_id
        call.name = call.name or getattr(function, "name", None) or ""
        call.arguments.append(getattr(function, "arguments", None) or "")

    def reply(self, cost: float) -> ModelReply:
        """Return the reply so far; arguments stay the text that the model wrote."""
        calls = (ToolCall(c.id or self._ids(), c.name, "".join(c.arguments) or "{}") for c in self._calls)
        return ModelReply(
            text="".join(self._text),
            tool_calls=tuple(calls),
            input_tokens=_get_token_count(self.usage, "prompt_tokens"),
            output_tokens=_get_token_count(self.usage, "completion_tokens"),
            cached_tokens=_get_cached_token_count(self.usage),
            cost=cost,
            finish_reason=self.finish_reason,
        )


def _get_token_count(usage: Any, name: str) -> int:
    return int(getattr(usage, name, 0) or 0)


def _get_cached_token_count(usage: Any) -> int:
    return _get_token_count(getattr(usage, "prompt_tokens_details", None), "cached_tokens")
