"""The models of judge and queen: the built-in rules, or any model that the runtime can load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from queenright.health.settings import HealthSettings
from queenright.instrumentation.errors import QueenrightError
from queenright.judge.judging_budget import ModelBudget
from queenright.judge.metered_model import MeteredModel
from queenright.judge.metrics import FallbackReason, JudgeMetrics, ModelRole
from queenright.judge.prompting import judge_prompt, queen_prompt
from queenright.judge.rules_model import RulesModel
from queenright.judge.settings import RULES, JudgeSettings, ModelSettings
from queenright.runtime.deadline import Sleep
from queenright.runtime.llm.litellm_provider import ProviderUnavailableError, load_provider
from queenright.runtime.llm.model import LLMProvider


class ModelUnavailableError(QueenrightError):
    """Raised at the start when a configured model cannot be used."""


@dataclass(frozen=True, slots=True)
class AssignedModel:
    """The model of one role, with its limits."""

    provider: LLMProvider
    settings: ModelSettings

    @property
    def fallback_reason(self) -> FallbackReason | None:
        """Why the rules answer instead of the model, or None if the model answers."""
        return self.provider.fallback_reason if isinstance(self.provider, MeteredModel) else None

    @property
    def answering(self) -> str:
        """The name of the model that answers now, which is that of the rules while they replace the model."""
        return RULES if self.fallback_reason is not None else self.provider.name

    def count_invalid(self, reason: str) -> None:
        """Count a reply without a valid decision."""
        if isinstance(self.provider, MeteredModel):
            self.provider.count_invalid(reason)


def load_model(
    settings: ModelSettings,
    role: ModelRole,
    *,
    metrics: JudgeMetrics,
    budget: ModelBudget | None = None,
    monotonic: Callable[[], float] = time.perf_counter,
    sleep: Sleep = asyncio.sleep,
) -> LLMProvider:
    """
    Return the model called ``settings.model``, metered for ``role``.

    The rules replace it while the budget is spent or if it fails too often.

    Args:
        budget: Limits the cost of calls; None for no limit.

    Raises:
        ModelUnavailableError: litellm is not installed, or the model's script does not exist.
    """
    if settings.model == RULES:
        return MeteredModel(RulesModel(), role, settings, metrics=metrics, monotonic=monotonic, sleep=sleep)
    return MeteredModel(
        _load_provider(settings, role),
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
    Check the models and prompts of the judge and the queen, without calling a model.

    Raises:
        ModelUnavailableError: See ``load_model``.
        InvalidPromptError: A prompt file cannot be used.
    """
    for role, settings in (("judge", judging.judge), ("queen", judging.queen)):
        if settings.model != RULES:
            _load_provider(settings, role)
    judge_prompt(health, judging.judge.prompt)
    queen_prompt(judging.queen.prompt)


def _load_provider(settings: ModelSettings, role: str) -> LLMProvider:
    try:
        return load_provider(settings.model, timeout_seconds=settings.timeout_seconds)
    except ProviderUnavailableError as error:
        raise ModelUnavailableError(f"cannot load the {role}'s model: {error}, or use {RULES!r}") from error
