"""Checks of the judge."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from queenright.api.terms import CheckOutcome
from queenright.api.wire import Wire, example_of, shown


class JudgeCheck(Wire):
    """One check of the judge: its trigger, result and cost; null is what was not recorded."""

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


_NEXT: Final = "The cursor of the next page; null on the last one."


class JudgeChecksPage(Wire):
    """Checks of the judge, newest first."""

    model_config = shown({"checks": [example_of(JudgeCheck)], "next": None})

    checks: list[JudgeCheck]
    next: str | None = Field(description=_NEXT)
