"""What a call of a model may cost, before it is made; and what one has cost that nobody answered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, runtime_checkable

from queenright.runtime.llm.model import LLMProvider, Message, ToolSpec

Unit = Literal["dollars", "tokens"]

ANSWER_TOKENS: Final = 2_000
"""So much is set aside for an answer: a few times what judge and queen write. No model is held to it."""

_BYTES_A_TOKEN: Final = 4
"""Of UTF-8, of English and JSON; tokenizers differ by a fifth or so."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Dollars and tokens."""

    dollars: float = 0.0
    tokens: int = 0

    def __bool__(self) -> bool:
        return bool(self.dollars or self.tokens)

    def of(self, unit: Unit) -> float:
        """Return how many."""
        return self.dollars if unit == "dollars" else self.tokens

    @property
    def sound(self) -> bool:
        """Whether both are numbers that can be counted."""
        return math.isfinite(self.dollars) and self.dollars >= 0 <= self.tokens


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a call may cost: the question alone, which counts if nobody answers, and with its answer."""

    question: Cost = Cost()
    call: Cost = Cost()


@runtime_checkable
class Priced(Protocol):
    """A model that knows its price."""

    async def price(self, input_tokens: int, output_tokens: int) -> float:
        """Return dollars; 0 if no price is known."""
        ...


async def estimate(model: LLMProvider, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Estimate:
    """Return what asking ``model`` may cost. One without a price costs tokens only."""
    read = question_tokens(messages, tools)
    alone = whole = 0.0
    if isinstance(model, Priced):
        alone = await model.price(read, 0)
        whole = await model.price(read, ANSWER_TOKENS)
    return Estimate(Cost(alone, read), Cost(whole, read + ANSWER_TOKENS))


def question_tokens(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
    """Return about how many tokens a model has to read: all that is said, and what may be called."""
    texts = [message.content for message in messages]
    texts += [f"{call.name}{call.arguments}" for message in messages for call in message.tool_calls]
    texts += [f"{tool.name}{tool.description}{tool.parameters}" for tool in tools]
    return math.ceil(sum(len(text.encode(errors="replace")) for text in texts) / _BYTES_A_TOKEN)
