"""Settings of judge and queen: which model thinks in them, and how long it may take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_serializer

from queenright.judge.stack.http import StackAddress

RULES: Final = "queenright/rules"
"""The built-in model: follows the rules' tables, needs no key, costs nothing."""


def _address(url: SecretStr) -> SecretStr:
    StackAddress.parse(url.get_secret_value())
    return url


StackUrl = Annotated[SecretStr, AfterValidator(_address)]

Dollars = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Tokens = Annotated[int, Field(gt=0)]


class ModelSettings(BaseModel):
    """One model in one role."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(default=RULES, min_length=1)
    """``queenright/rules``, or any model string that litellm knows (extra ``llm``)."""
    timeout_seconds: float = Field(default=60, gt=0, le=3600)
    """For one answer. One that takes longer is no answer; the rules' answer stands."""
    prompt: Path | None = None
    """A file in place of the built-in system prompt."""


class BudgetSettings(BaseModel):
    """What judge and queen may cost together in any hour and any day; null is no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dollars_per_hour: Dollars | None = 1
    dollars_per_day: Dollars | None = 10
    tokens_per_hour: Tokens | None = 2_000_000
    """The limits in tokens are for models of which no price is known: they cost no dollars."""
    tokens_per_day: Tokens | None = 20_000_000


class JudgeSettings(BaseModel):
    """The ``judging`` block; how often and on what is in ``health_monitoring``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    judge: ModelSettings = ModelSettings()
    queen: ModelSettings = ModelSettings()
    budget: BudgetSettings = BudgetSettings()
    prometheus_url: Annotated[StackUrl | None, Field(repr=False)] = None
    """Models may look at its metrics; it may hold a login. None: they cannot."""
    prometheus_token_file: Path | None = None
    """A bearer token for it is in this file, which nobody else may read."""
    tempo_url: Annotated[StackUrl | None, Field(repr=False)] = None
    """Models may look at its traces; it may hold a login. None: at those in the event log."""
    tempo_token_file: Path | None = None
    """A bearer token for it is in this file, which nobody else may read."""

    @field_serializer("prometheus_url", "tempo_url", when_used="json")
    def _without_credentials(self, url: SecretStr | None) -> str | None:
        return None if url is None else StackAddress.parse(url.get_secret_value()).name
