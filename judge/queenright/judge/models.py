"""The models behind judge and queen: the built-in rules, or any that the runtime can load; all counted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from queenright.health.settings import HealthSettings
from queenright.instrumentation.errors import QueenrightError
from queenright.judge.budget import Budget
from queenright.judge.metered import Metered
from queenright.judge.metrics import FallbackReason, JudgeMetrics, ModelRole
from queenright.judge.prompting import judge_prompt, queen_prompt
from queenright.judge.rules import RulesModel
from queenright.judge.settings import RULES, JudgeSettings, ModelSettings
from queenright.runtime.deadline import Sleep
from queenright.runtime.llm.litellm_provider import ProviderUnavailable, load_provider
from queenright.runtime.llm.model import LLMProvider


class ModelUnavailableError(QueenrightError):
    """Raised at start when a model is set that cannot be used here."""


@dataclass(frozen=True, slots=True)
class AssignedModel:
    """The model of one role, with its limits."""

    provider: LLMProvider
    settings: ModelSettings

    @property
    def fallback_reason(self) -> FallbackReason | None:
        """Why the rules answer instead of the model; None if the model answers."""
        return self.provider.replaced if isinstance(self.provider, Metered) else None

    @property
    def answering(self) -> str:
        """The name of the model that answers now: the rules' while they replace it."""
        return RULES if self.fallback_reason is not None else self.provider.name

    def count_invalid(self, reason: str) -> None:
        """Count a reply that holds no valid decision."""
        if isinstance(self.provider, Metered):
            self.provider.count_invalid(reason)


def load_model(
    settings: ModelSettings,
    role: ModelRole,
    *,
    metrics: JudgeMetrics,
    budget: Budget | None = None,
    monotonic: Callable[[], float] = time.perf_counter,
    sleep: Sleep = asyncio.sleep,
) -> LLMProvider:
    """
    Return the model called ``settings.model``, with everything it costs counted for ``role``.

    Where it may not be asked, or fails too often, the rules answer in its place.

    Args:
        settings: Which, and its limits.
        role: Who thinks by it.
        metrics: Counts answers, time, tokens, dollars, and answers of the rules in its place.
        budget: What answers are paid from; None is no limit.
        monotonic: The clock of its time limit and its rests.
        sleep: Waits on that clock.

    Raises:
        ModelUnavailableError: It needs litellm, which is not installed, or a script that is not there.
    """
    if settings.model == RULES:
        return Metered(RulesModel(), role, settings, metrics=metrics, monotonic=monotonic, sleep=sleep)
    return Metered(
        _provider(settings, role),
        role,
        settings,
        metrics=metrics,
        budget=budget,
        stand_in=RulesModel(),
        monotonic=monotonic,
        sleep=sleep,
    )


def check_judging(health: HealthSettings, judging: JudgeSettings) -> None:
    """
    Look whether judge and queen have what they are set to think by; nothing is asked.

    Raises:
        ModelUnavailableError: as ``load_model``.
        InvalidPromptError: A prompt's file cannot be used.
    """
    if judging.judge.model != RULES:
        _provider(judging.judge, "judge")
    if judging.queen.model != RULES:
        _provider(judging.queen, "queen")
    judge_prompt(health, judging.judge.prompt)
    queen_prompt(judging.queen.prompt)


def _provider(settings: ModelSettings, role: ModelRole) -> LLMProvider:
    try:
        return load_provider(settings.model, timeout_seconds=settings.timeout_seconds)
    except ProviderUnavailable as error:
        raise ModelUnavailableError(f"the {role} has no model: {error}, or use {RULES!r}") from error
