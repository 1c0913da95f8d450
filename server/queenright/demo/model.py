"""The demo agents' models: scripted and seeded, so that no key is needed, or any litellm model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that a model asks for."""

    tool: str
    arguments: dict[str, object]
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """
    One turn of a model: tool calls, or an answer, or a question to the user.

    A ``final`` answer ends the task; others are one of several asked for.
    ``input_tokens`` and ``output_tokens`` as the provider counts them.
    """

    calls: tuple[Call, ...] = ()
    answer: str = ""
    question: str = ""
    final: bool = False
    input_tokens: int = 0
    output_tokens: int = 0


class ProviderError(Exception):
    """Raised when the model's provider does not answer, as a provider's client would."""


class Model(Protocol):
    """What an agent asks for its next move."""

    name: str
    provider: str

    def reply(self, messages: Sequence[dict[str, Any]]) -> Reply:
        """Return the next move. Raises `ProviderError` when the provider fails."""
        ...


@dataclass
class ScriptedModel:
    """Plays a script: each item is a reply, or an error that the provider answers with."""

    script: Iterator[Reply | ProviderError]
    name: str = "scripted"
    provider: str = "demo"
    _context: int = field(default=600, init=False)

    def reply(self, messages: Sequence[dict[str, Any]]) -> Reply:
        """Return the script's next reply; token counts follow the conversation's length."""
        move = next(self.script, Reply(answer="There is nothing more to do.", final=True))
        if isinstance(move, ProviderError):
            raise move
        self._context = 600 + sum(len(str(m.get("content", ""))) for m in messages[-12:]) // 4
        return replace(move, input_tokens=self._context, output_tokens=40 + 10 * len(move.calls))


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
        ("list_files", "Names of the files, those that end with a suffix.", "suffix", []),
        ("read_file", "The beginning of one file.", "path", ["path"]),
        ("search", "Places, path:line, where a word stands.", "word", ["word"]),
        ("summarise", "How long a file is and the words it uses most.", "path", ["path"]),
    )
]


class LiteLLMModel:
    """
    Any model that litellm knows, for agents that really decide.

    Raises:
        ImportError: the ``llm`` extra is not installed.
    """

    provider = "litellm"

    def __init__(self, name: str, *, timeout: float = 60) -> None:
        # Without it litellm's import asks the network for a price list.
        os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        import litellm

        self.name = name
        self._timeout = timeout
        self._litellm = litellm

    def reply(self, messages: Sequence[dict[str, Any]]) -> Reply:
        """Ask the model. Every failure of the provider is a `ProviderError`."""
        try:
            response = self._litellm.completion(
                model=self.name,
                messages=list(messages),
                tools=_SCHEMAS,
                timeout=self._timeout,
                # Else litellm 1.106 wants the package `mcp` for any call with tools.
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
