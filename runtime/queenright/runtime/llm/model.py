"""What a node talks to: messages, tool calls, and the one method a model must have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from queenright.instrumentation.errors import QueenrightError

Role = Literal["system", "user", "assistant", "tool"]

RUN: Final[ContextVar[str]] = ContextVar("queenright_run", default="")
"""The id of the run that a model is asked by; empty outside of any."""


class ModelError(QueenrightError):
    """Raised by a model that gave no answer: the provider failed, refused, or answered nonsense."""


class TransientModelError(ModelError):
    """
    Raised by a model that may well answer if it is asked again: a rate limit, a time-out, a cut stream.

    ``retry_after`` is how many seconds the provider asked to be left alone, if it said so.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as the model wrote it; ``arguments`` is JSON text and may be malformed."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One entry of a conversation. The system prompt is put first by the node and is never stored."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """On a tool's answer: the call that it answers."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; what is empty is left out."""
        row: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_calls:
            row["tool_calls"] = [
                {"id": c.id, "name": c.name, "arguments": c.arguments} for c in self.tool_calls
            ]
        if self.tool_call_id:
            row["tool_call_id"] = self.tool_call_id
        return row

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Message:
        """
        Read what ``to_dict`` wrote.

        Raises:
            ValueError: ``row`` is no message.
        """
        try:
            role, content = row["role"], row["content"]
            calls = tuple(ToolCall(c["id"], c["name"], c["arguments"]) for c in row.get("tool_calls", ()))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a message: {error!r}") from error
        if role not in ("user", "assistant", "tool") or not isinstance(content, str):
            raise ValueError(f"not a message: role {role!r}")
        return cls(role=role, content=content, tool_calls=calls, tool_call_id=row.get("tool_call_id", ""))


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it: ``parameters`` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """One answer, and what it cost; ``cost`` is in dollars."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Those of ``input_tokens`` that the provider had read before, and asks less for."""
    cost: float = 0.0
    finish_reason: str = ""
    """Why the model stopped, in its provider's words."""


OnText = Callable[[str], None]
"""Is given each piece of an answer's text as it arrives."""


class LLMProvider(Protocol):
    """Something that continues a conversation: a language model, or a rule that stands in for one."""

    @property
    def name(self) -> str:
        """What it is called, for spans and metrics: a fixed word."""
        ...

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """
        Answer ``messages``, oldest first, with text or with calls of ``tools``.

        Args:
            messages: The conversation, the system prompt first.
            tools: What may be called.
            on_text: Is given the text piece by piece, by a provider that streams. It must not be relied
                on: another gives it nothing, and the whole text is in the reply in either case.

        Raises:
            TransientModelError: There is no answer, and there may be one later.
            ModelError: There is no answer.
        """
        ...
