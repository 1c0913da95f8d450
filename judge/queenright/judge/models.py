"""The models behind judge and queen: the built-in rules, or any that the runtime can load; all counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from queenright.instrumentation.errors import QueenrightError
from queenright.judge.metrics import JudgeMetrics, ModelRole
from queenright.judge.rules import RulesModel
from queenright.judge.settings import RULES, ModelSettings
from queenright.runtime.llm.litellm_provider import ProviderUnavailable, load_provider
from queenright.runtime.llm.model import LLMProvider, Message, ModelReply, OnText, ToolSpec


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
        ModelUnavailableError: It needs litellm, which is not installed, or a script that is not there.
    """
    if settings.model == RULES:
        return Metered(RulesModel(), role, metrics, monotonic)
    try:
        model = load_provider(settings.model, timeout_seconds=settings.timeout_seconds)
    except ProviderUnavailable as error:
        raise ModelUnavailableError(f"the {role} has no model: {error}, or use {RULES!r}") from error
    return Metered(model, role, metrics, monotonic)


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
