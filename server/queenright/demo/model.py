"""Models of the demo agents: scripted, which needs no API key, or any litellm model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final, Protocol

SCRIPTED_MODEL: Final = "demo-model"
LARGE_MODEL: Final = "demo-model-large"
DEMO_PRICES: Final = {
    SCRIPTED_MODEL: (Decimal("0.000003"), Decimal("0.000015")),
    LARGE_MODEL: (Decimal("0.0003"), Decimal("0.0015")),
}
"""Invented prices of the scripted models: US dollars per input token and per output token."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call in a model's reply."""

    tool: str
    arguments: dict[str, object]
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """
    One turn of a model: tool calls, an answer, or a question to the user.

    A ``final`` answer ends the task. Token counts are the provider's.
    """

    calls: tuple[Call, ...] = ()
    answer: str = ""
    question: str = ""
    final: bool = False
    input_tokens: int = 0
    output_tokens: int = 0


class ProviderError(Exception):
    """Raised when the model's provider fails."""


class Model(Protocol):
    """Decides the next turn of an agent."""

    name: str
    provider: str

    def reply(self, messages: Sequence[dict[str, Any]]) -> Reply:
        """Return the next turn. Raises `ProviderError` if the provider fails."""
        ...


@dataclass
class ScriptedModel:
    """Plays a script of replies and provider errors."""

    script: Iterator[Reply | ProviderError]
    name: str = SCRIPTED_MODEL
    provider: str = "demo"
    _context: int = field(default=600, init=False)

    def reply(self, messages: Sequence[dict[str, Any]]) -> Reply:
        """Return the next reply of the script; token counts follow the length of the conversation."""
        turn = next(self.script, Reply(answer="There is nothing more to do.", final=True))
        if isinstance(turn, ProviderError):
            raise turn
        self._context = 600 + sum(len(str(m.get("content", ""))) for m in messages[-12:]) // 4
        return replace(turn, input_tokens=self._context, output_tokens=40 + 10 * len(turn.calls))


_SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string"}},
                "required": required,
            },
        },
    }
    for name, description, key, required in (
        ("list_files", "List the files, optionally those with a suffix.", "suffix", []),
        ("read_file", "Read the beginning of a file.", "path", ["path"]),
        ("search", "Find a word; returns path:line.", "word", ["word"]),
        ("summarise", "Return the length of a file and its most frequent words.", "path", ["path"]),
    )
]


class LiteLLMModel:
    """
    Any litellm model.

    Raises:
        ImportError: The extra ``llm`` is not installed.
    """

    provider = "litellm"

    def __init__(self, name: str) -> None:
        # Otherwise importing litellm downloads a price list.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        import litellm

        self.name = name
        self._litellm = litellm

    def reply(self, messages: Sequence[dict[str, Any]]) -> Reply:
        """Call the model. Every failure of the provider is a `ProviderError`."""
        try:
            response = self._litellm.completion(
                model=self.name,
                messages=list(messages),
                tools=_SCHEMAS,
                timeout=60,
                # Otherwise litellm 1.106 needs the package `mcp` for calls with tools.
                _skip_mcp_handler=True,
            )
            message = response.choices[0].message
            calls = tuple(
                Call(call.function.name, json.loads(call.function.arguments or "{}"))
                for call in message.tool_calls or ()
            )
            usage = response.usage
        except Exception as error:
            raise ProviderError(f"{type(error).__name__} from {self.name}") from error
        return Reply(
            calls,
            answer="" if calls else (message.content or "(no answer)"),
            final=not calls,
            input_tokens=int(usage.prompt_tokens or 0),
            output_tokens=int(usage.completion_tokens or 0),
        )
