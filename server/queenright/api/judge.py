"""Checks of the judge."""

from __future__ import annotations

from pydantic import Field

from queenright.api.base_model import NEXT, ApiModel
from queenright.api.terms import CheckOutcome


class JudgeCheck(ApiModel):
    """One check of the judge: its trigger, result and cost. Values that were not recorded are null."""

    checked_at: float = Field(description="Seconds since the epoch.")
    outcome: CheckOutcome = "unknown"
    woken_by: list[str] = Field(
        [], description="`timer` for a check of all workers, and the events that triggered it."
    )
    workers: int | None = Field(None, description="Workers that were checked.")
    judged: int | None = Field(None, description="Workers that a model judged.")
    tickets: int | None = None
    healthy: int | None = None
    unknown: int | None = None
    counted: int | None = Field(
        None, description="Conditions that already have a ticket: counted without a model."
    )
    model_calls: int | None = None
    tokens: int | None = None
    cost: float | None = Field(None, description="Dollars.")
    seconds: float | None = None
    model: str = Field("", description="The model that answered; empty: none.")
    prompt: str = Field("", description="The version of its prompt.")


class JudgeChecksPage(ApiModel):
    """Checks of the judge, newest first."""

    checks: list[JudgeCheck]
    next: str | None = Field(description=NEXT)
