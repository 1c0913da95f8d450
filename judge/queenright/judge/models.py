"""The models behind judge and queen: the built-in rules, or anything litellm can reach."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import redact
from queenright.judge.metrics import JudgeMetrics, ModelRole
from queenright.judge.rules import RulesModel
from queenright.judge.settings import RULES, ModelSettings
from queenright.runtime.model import LLMProvider, Message, ModelError, ModelReply, OnText, ToolCall, ToolSpec

_ERROR_LIMIT: Final = 300


class ModelUnavailableError(QueenrightError):
    """Raised at start when a model is set that cannot be used here."""


def load_model(
    settings: ModelSettings,
    role: ModelRole,
    *,
    metrics: JudgeMetrics,
    monotonic: Callable[[], float] = time.perf_counter,
) -> LLMProvider:
    """
    Return the model called ``settings.model``, with everything it costs counted for ``role``.

    Raises:
        ModelUnavailableError: It needs litellm, which is not installed.
    """
    if settings.model == RULES:
        return Metered(RulesModel(), role, metrics, monotonic)
    if importlib.util.find_spec("litellm") is None:
        raise ModelUnavailableError(
            f"the {role}'s model {settings.model!r} needs litellm: install queenright[llm], or use {RULES!r}"
        )
    return Metered(LiteLlmModel(settings.model, settings.timeout_seconds), role, metrics, monotonic)


class Metered:
    """A model whose answers are counted: time, tokens, dollars."""

    def __init__(
        self, model: LLMProvider, role: ModelRole, metrics: JudgeMetrics, monotonic: Callable[[], float]
    ) -> None:
        self._model = model
        self._role = role
        self._metrics = metrics
        self._monotonic = monotonic

    @property
    def name(self) -> str:
        """The model's own name."""
        return self._model.name

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """Ask the model, and count."""
        began = self._monotonic()
        reply: ModelReply | None = None
        try:
            reply = await self._model.complete(messages, tools, on_text)
        finally:
            self._metrics.answered(self._role, self.name, reply, self._monotonic() - began)
        return reply


class LiteLlmModel:
    """
    A language model behind litellm.

    litellm is imported at the first question, in a thread: it takes seconds. Keys come from the
    environment, the way litellm documents for each provider.
    """

    def __init__(self, name: str, timeout_seconds: float) -> None:
        self._name = name
        self._timeout = timeout_seconds

    @property
    def name(self) -> str:
        """The model string."""
        return self._name

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """
        Ask the model.

        Raises:
            ModelError: The provider failed, or answered in a shape that is no answer.
        """
        litellm = await asyncio.to_thread(_litellm)
        try:
            response = await litellm.acompletion(
                model=self._name,
                messages=[_to_openai(message) for message in messages],
                tools=[_tool_to_openai(tool) for tool in tools],
                timeout=self._timeout,
                # Whoever asks decides when to ask again.
                num_retries=0,
                # Else litellm imports the package `mcp` for any call with tools, and fails without it.
                _skip_mcp_handler=True,
            )
        except Exception as error:
            # A provider's message may repeat the key it refused; litellm adds lines of its own behind it.
            said = str(error).strip().partition("\n")[0]
            reason = redact(said, len(said))[:_ERROR_LIMIT]
            raise ModelError(f"{self._name}: {type(error).__name__}: {reason}") from error
        try:
            return _reply(response, _cost(litellm, response))
        except (AttributeError, IndexError, TypeError) as error:
            raise ModelError(f"{self._name} answered in a shape that is no answer: {error}") from error


def _litellm() -> Any:
    """Import litellm so that it asks the network for nothing and logs nothing."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm: Any = importlib.import_module("litellm")
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.drop_params = True
    for noisy in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    return litellm


def _to_openai(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        row["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        row["tool_call_id"] = message.tool_call_id
    return row


def _tool_to_openai(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _reply(response: Any, cost: float) -> ModelReply:
    message = response.choices[0].message
    usage = getattr(response, "usage", None)
    return ModelReply(
        text=message.content or "",
        tool_calls=tuple(
            ToolCall(str(call.id), str(call.function.name), call.function.arguments or "{}")
            for call in message.tool_calls or ()
        ),
        input_tokens=int(getattr(usage, "prompt_tokens", 0) or 0),
        output_tokens=int(getattr(usage, "completion_tokens", 0) or 0),
        cost=cost,
    )


def _cost(litellm: Any, response: Any) -> float:
    try:
        return float(litellm.completion_cost(completion_response=response) or 0.0)
    except Exception:  # a model that is not in litellm's price list
        return 0.0
