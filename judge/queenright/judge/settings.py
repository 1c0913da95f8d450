"""The ``judging`` block of the settings: models, budget, and the sources that models may query."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_serializer

from queenright.judge.stack.http import StackAddress

RULES: Final = "queenright/rules"
"""The built-in model. It follows the rules' tables, needs no key, and costs nothing."""


def _validate_address(url: SecretStr) -> SecretStr:
    StackAddress.parse(url.get_secret_value())
    return url


StackUrl = Annotated[SecretStr, AfterValidator(_validate_address)]

Dollars = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Tokens = Annotated[int, Field(gt=0)]


class ModelSettings(BaseModel):
    """The model of the judge or the queen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(default=RULES, min_length=1)
    """``queenright/rules``, ``scripted:PATH``, or any model string of litellm (extra ``llm``)."""
    timeout_seconds: float = Field(default=60, gt=0, le=3600)
    """Seconds for one answer. After that, the rules' answer applies."""
    prompt: Path | None = None
    """File that replaces the built-in system prompt; None: the built-in prompt is used."""


class BudgetSettings(BaseModel):
    """
    The limits of the judge and the queen together. At a limit, the rules answer instead.

    An hour may use a tenth of a day's limit, so that a single bad hour does not use up the day's limit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    dollars_per_day: Dollars | None = 10
    """US dollars in any 24 hours; None: no limit."""
    tokens_per_day: Tokens | None = 20_000_000
    """Tokens in any 24 hours, for models without a known price; None: no limit."""


class JudgeSettings(BaseModel):
    """The ``judging`` block. The times of checks are in ``health_monitoring.judge``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    judge: ModelSettings = ModelSettings()
    queen: ModelSettings = ModelSettings()
    budget: BudgetSettings = BudgetSettings()
    prometheus_url: Annotated[StackUrl | None, Field(repr=False)] = None
    """URL of a Prometheus that models may query, with an optional login; None: they cannot query metrics."""
    prometheus_token_file: Path | None = None
    """File with a bearer token for this URL, readable only by its owner; None: no token."""
    tempo_url: Annotated[StackUrl | None, Field(repr=False)] = None
    """
    URL of a Tempo whose traces models may read, with an optional login; None: they read traces of the event
    log.
    """
    tempo_token_file: Path | None = None
    """File with a bearer token for this URL, readable only by its owner; None: no token."""

    @field_serializer("prometheus_url", "tempo_url", when_used="json")
    def _remove_credentials(self, url: SecretStr | None) -> str | None:
        return None if url is None else StackAddress.parse(url.get_secret_value()).name
