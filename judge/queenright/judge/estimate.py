"""Estimate the cost of a model call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

from queenright.runtime.llm.model import LLMProvider, Message, ToolSpec

Unit = Literal["dollars", "tokens"]

ANSWER_TOKENS: Final = 2_000
"""The tokens that are reserved for a reply: a few times the usual. This does not limit the model."""

_BYTES_PER_TOKEN: Final = 4
"""The UTF-8 bytes per token of English text and JSON. Tokenizers differ by about a fifth."""


@dataclass(frozen=True, slots=True)
class Cost:
    """An amount of US dollars and tokens."""

    dollars: float = 0.0
    tokens: int = 0

    def __bool__(self) -> bool:
        return bool(self.dollars or self.tokens)

    def amount(self, unit: Unit) -> float:
        """Return the dollars or the tokens."""
        return self.dollars if unit == "dollars" else self.tokens

    @property
    def is_valid(self) -> bool:
        """Whether both amounts are finite and not negative."""
        return math.isfinite(self.dollars) and self.dollars >= 0 <= self.tokens


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated cost of a call: of the question alone, and including the reply."""

    question: Cost = Cost()
    call: Cost = Cost()


@runtime_checkable
class PricedModel(Protocol):
    """A model with a known price."""

    async def price(self, input_tokens: int, output_tokens: int) -> float:
        """Return the price in US dollars, or 0 if it is unknown."""
        ...


async def estimate(model: LLMProvider, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Estimate:
    """Return the estimated cost of calling ``model``. Without a known price, the dollars are 0."""
    tokens = question_tokens(messages, tools)
    question = call = 0.0
    if isinstance(model, PricedModel):
        question = await model.price(tokens, 0)
        call = await model.price(tokens, ANSWER_TOKENS)
    return Estimate(Cost(question, tokens), Cost(call, tokens + ANSWER_TOKENS))


def question_tokens(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
    """Return the estimated number of input tokens of a call, for its messages and tools."""
    texts = [message.content for message in messages]
    texts += [f"{call.name}{call.arguments}" for message in messages for call in message.tool_calls]
    texts += [f"{tool.name}{tool.description}{tool.parameters}" for tool in tools]
    return math.ceil(sum(len(text.encode(errors="replace")) for text in texts) / _BYTES_PER_TOKEN)
