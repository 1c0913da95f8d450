"""The interface of a language model: messages, tool calls and the provider protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from queenright.instrumentation.errors import QueenrightError

Role = Literal["system", "user", "assistant", "tool"]

CURRENT_RUN_ID: Final[ContextVar[str]] = ContextVar("queenright_run", default="")
"""Id of the run that calls the model; empty outside of runs."""


class ModelError(QueenrightError):
    """
    Raised when a model gave no reply: the provider failed, rejected the request, or sent an invalid response.
    """


class TransientModelError(ModelError):
    """
    Raised when a model may reply if called again, after a rate limit, a timeout or an interrupted stream.

    ``retry_after`` is the number of seconds to wait, if the provider gave one.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call as written by the model; ``arguments`` is JSON text and may be malformed."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a conversation. The node adds the system prompt; it is never stored."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """For a tool's answer: the id of the call."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as shown to a model; ``parameters`` is the JSON schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """A model's reply with its usage; ``cost`` is in dollars."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """The part of ``input_tokens`` that was read from the provider's cache, at a lower price."""
    cost: float = 0.0
    finish_reason: str = ""
    """Why the model stopped, as reported by its provider."""


OnText = Callable[[str], None]
"""Called with each piece of a reply's text as it arrives."""


class LLMProvider(Protocol):
    """Continues a conversation: a language model, or rules that replace one."""

    @property
    def name(self) -> str:
        """The model's name for spans and metrics: a fixed word."""
        ...

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """
        Answer ``messages``, oldest first, with text or with calls of ``tools``.

        Args:
            messages: The conversation, starting with the system prompt.
            tools: The tools the model may call.
            on_text: Called with each piece of text by a provider that streams; others never call it. The
                reply contains the whole text in either case.

        Raises:
            TransientModelError: There is no reply, but a retry may succeed.
            ModelError: There is no reply.
        """
        ...
