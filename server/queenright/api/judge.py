"""Checks of the judge."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from queenright.api.terms import CheckOutcome
from queenright.api.wire import Wire, example_of, shown


class JudgeCheck(Wire):
    """One check of the judge: its trigger, result and cost."""

    model_config = shown(
        {
            "checked_at": "2026-01-24T09:58:00+00:00",
            "outcome": "ticket",
            "woken_by": ["timer"],
            "workers": 12,
            "judged": 1,
            "tickets": 1,
            "healthy": 0,
            "unknown": 0,
            "counted": 0,
            "model_calls": 2,
            "tokens": 3100,
            "cost": 0.004,
            "seconds": 3.2,
            "model": "scripted:judge",
            "prompt": "judge@1",
        }
    )

    checked_at: str = Field(description="ISO 8601, UTC.")
    outcome: CheckOutcome
    woken_by: list[str] = Field(
        description="`timer` for a check of all workers, and the events that triggered it."
    )
    workers: int = Field(description="Workers that were checked.")
    judged: int = Field(description="Workers that a model judged.")
    tickets: int
    healthy: int
    unknown: int
    counted: int = Field(description="Conditions that already have a ticket: counted without a model.")
    model_calls: int
    tokens: int
    cost: float = Field(description="Dollars.")
    seconds: float
    model: str = Field("", description="The model that answered; empty: none.")
    prompt: str = Field("", description="The version of its prompt.")


_NEXT: Final = "The cursor of the next page; null on the last one."


class JudgeChecksPage(Wire):
    """Checks of the judge, newest first."""

    model_config = shown({"checks": [example_of(JudgeCheck)], "next": None})

    checks: list[JudgeCheck]
    next: str | None = Field(description=_NEXT)
