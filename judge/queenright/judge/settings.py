"""Settings of judge and queen: their models and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_serializer

from queenright.judge.stack.http import StackAddress

RULES: Final = "queenright/rules"
"""The built-in model: follows the rules, needs no key, costs nothing."""


def _address(url: SecretStr) -> SecretStr:
    StackAddress.parse(url.get_secret_value())
    return url


StackUrl = Annotated[SecretStr, AfterValidator(_address)]

Dollars = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Tokens = Annotated[int, Field(gt=0)]


class ModelSettings(BaseModel):
    """The model of one role."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(default=RULES, min_length=1)
    """``queenright/rules``, or any model string that litellm knows (extra ``llm``)."""
    timeout_seconds: float = Field(default=60, gt=0, le=3600)
    """Limit of one reply. After it the rules' answer stands."""
    prompt: Path | None = None
    """A file that replaces the built-in system prompt."""


class BudgetSettings(BaseModel):
    """Spending limits of judge and queen together, in any hour and any day; null is no limit."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dollars_per_hour: Dollars | None = 1
    dollars_per_day: Dollars | None = 10
    tokens_per_hour: Tokens | None = 2_000_000
    """The token limits cover models without a known price, which cost no dollars."""
    tokens_per_day: Tokens | None = 20_000_000


class JudgeSettings(BaseModel):
    """The ``judging`` block. Intervals and thresholds are in ``health_monitoring``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    judge: ModelSettings = ModelSettings()
    queen: ModelSettings = ModelSettings()
    budget: BudgetSettings = BudgetSettings()
    prometheus_url: Annotated[StackUrl | None, Field(repr=False)] = None
    """A Prometheus that models may query; may contain credentials."""
    prometheus_token_file: Path | None = None
    """A file with its bearer token, readable by its owner only."""
    tempo_url: Annotated[StackUrl | None, Field(repr=False)] = None
    """A Tempo that models may query, may contain credentials. Default: the traces in the event log."""
    tempo_token_file: Path | None = None
    """A file with its bearer token, readable by its owner only."""

    @field_serializer("prometheus_url", "tempo_url", when_used="json")
    def _without_credentials(self, url: SecretStr | None) -> str | None:
        return None if url is None else StackAddress.parse(url.get_secret_value()).name
