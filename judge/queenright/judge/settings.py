"""Settings of judge and queen: which model thinks in them, and how long it may take."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

RULES: Final = "queenright/rules"
"""The built-in model: follows the rules' tables, needs no key, costs nothing."""


class ModelSettings(BaseModel):
    """One model in one role."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(default=RULES, min_length=1)
    """``queenright/rules``, or any model string that litellm knows (extra ``llm``)."""
    timeout_seconds: float = Field(default=60, gt=0, le=3600)
    """For one answer. One that takes longer is no answer; the rules' answer stands."""
    max_turns: int = Field(default=8, ge=3, le=100)
    """Answers that one check may take."""


class JudgeSettings(BaseModel):
    """The ``judging`` block; how often and on what is in ``health_monitoring``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    judge: ModelSettings = ModelSettings()
    queen: ModelSettings = ModelSettings()
