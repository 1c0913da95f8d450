"""What the judge did, over HTTP."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from queenright.api.terms import CheckOutcome
from queenright.api.wire import Wire, example_of, shown


class JudgeCheck(Wire):
    """One check of the judge: what woke it, what came of it, what it cost; null is what was not recorded."""

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
    woken_by: list[str] = Field([], description="`timer` if everybody was looked at, and what else woke it.")
    workers: int | None = Field(None, description="Workers that were looked at.")
    judged: int | None = Field(None, description="Workers that were judged.")
    tickets: int | None = None
    healthy: int | None = None
    unknown: int | None = None
    counted: int | None = Field(
        None, description="Conditions that stand and have a ticket: counted without a model."
    )
    model_calls: int | None = None
    tokens: int | None = None
    cost: float | None = Field(None, description="Dollars.")
    seconds: float | None = None
    model: str = Field("", description="Which model answered; empty: none.")
    prompt: str = Field("", description="Which prompt it was given.")


_NEXT: Final = "The cursor of the next page; null on the last one."


class JudgeChecksPage(Wire):
    """Checks of the judge, newest first."""

    model_config = shown({"checks": [example_of(JudgeCheck)], "next": None})

    checks: list[JudgeCheck]
    next: str | None = Field(description=_NEXT)
