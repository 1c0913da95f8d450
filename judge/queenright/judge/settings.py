"""The ``judging`` block of the settings: models, budget, and the sources that models may query."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_serializer

from queenright.judge.stack.http import StackAddress

RULES: Final = "queenright/rules"
"""The built-in model: follows the rules' tables, needs no key and costs nothing."""


def _address(url: SecretStr) -> SecretStr:
    StackAddress.parse(url.get_secret_value())
    return url


StackUrl = Annotated[SecretStr, AfterValidator(_address)]

Dollars = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Tokens = Annotated[int, Field(gt=0)]


class ModelSettings(BaseModel):
    """The model of the judge or the queen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(default=RULES, min_length=1)
    """``queenright/rules``, ``scripted:PATH``, or any model string of litellm (extra ``llm``)."""
    timeout_seconds: float = Field(default=60, gt=0, le=3600)
    """Seconds for one answer; after that the rules' answer stands."""
    prompt: Path | None = None
    """File that replaces the built-in system prompt; None: the built-in one."""


class BudgetSettings(BaseModel):
    """
    Limits of judge and queen together. At a limit the rules answer.

    An hour may use a tenth of a day's limit, so that one bad hour leaves something for the rest of the day.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    dollars_per_day: Dollars | None = 10
    """US dollars in any 24 hours; None: no limit."""
    tokens_per_day: Tokens | None = 20_000_000
    """Tokens in any 24 hours, for models without a known price; None: no limit."""


class JudgeSettings(BaseModel):
    """The ``judging`` block. When the judge checks is in ``health_monitoring.judge``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    judge: ModelSettings = ModelSettings()
    queen: ModelSettings = ModelSettings()
    budget: BudgetSettings = BudgetSettings()
    prometheus_url: Annotated[StackUrl | None, Field(repr=False)] = None
    """Prometheus that models may query, with an optional login; None: they cannot query metrics."""
    prometheus_token_file: Path | None = None
    """File with a bearer token for it, readable only by its owner; None: no token."""
    tempo_url: Annotated[StackUrl | None, Field(repr=False)] = None
    """Tempo whose traces models may read, with an optional login; None: they read those of the event log."""
    tempo_token_file: Path | None = None
    """File with a bearer token for it, readable only by its owner; None: no token."""

    @field_serializer("prometheus_url", "tempo_url", when_used="json")
    def _without_credentials(self, url: SecretStr | None) -> str | None:
        return None if url is None else StackAddress.parse(url.get_secret_value()).name
