"""The dashboard of cost: what does watching cost, and what the work that is watched?"""

from __future__ import annotations

from queenright.grafana import panels
from queenright.grafana.links import agent_dashboard
from queenright.grafana.panels import TOKENS_A_SECOND, AnyPanel, Query, Row
from queenright.grafana.promql import (
    SHOWN,
    counts_by,
    highest_by,
    increase_by,
    per_hour_by,
    quantile_by,
    rate_by,
    share_of,
)
from queenright.grafana.states import BLUE, FALLBACKS
from queenright.grafana.tables import Column, series
from queenright.grafana.thresholds import Thresholds
from queenright.instrumentation import names

TITLE = "LLM cost"
QUESTION = "What does judging cost, is it within its budget, and what does the work use that is judged?"

_DOLLARS = "currencyUSD"


def rows(at: Thresholds) -> list[Row]:
    """Return the panels, with lines at these thresholds."""
    return [
        Row("What judging costs", _now(at)),
        Row("Where it goes", _judging(at)),
        Row("What the agents use", _work()),
    ]


def _now(at: Thresholds) -> list[AnyPanel]:
    spent = increase_by("", names.LLM_COST, window=SHOWN)
    return [
        panels.numbers(
            "Spent",
            "Dollars spent on judging and triage in the time shown.",
            _DOLLARS,
            Query(spent, "judging"),
            size=(4, 5),
        ),
        panels.numbers(
            "A ticket",
            "Dollars spent on judging for each ticket that was opened in the time shown, if any was.",
            _DOLLARS,
            Query(f"{spent} / ({increase_by('', names.TICKETS, window=SHOWN)} > 0)", "each"),
            size=(4, 5),
        ),
        panels.numbers(
            "A check",
            "Dollars spent on judging for each check that the judge made in the time shown, if any.",
            _DOLLARS,
            Query(f"{spent} / ({increase_by('', names.JUDGE_CHECKS, window=SHOWN)} > 0)", "each"),
            size=(4, 5),
        ),
        panels.gauges(
            "Of the budget",
            "What judging has cost in the last hour and day, as a share of what it may. From orange on we "
            "warn; at 100 % the rules judge until it is below again. Empty where there is no limit.",
            "percentunit",
            Query(
                f"{highest_by('window, unit', names.LLM_BUDGET_SPENT)}"
                f" / {highest_by('window, unit', names.LLM_BUDGET_LIMIT)}",
                "{{unit}}, last {{window}}",
            ),
            size=(8, 5),
            lines=at.budget,
            most=1,
        ),
        panels.numbers(
            "From the cache",
            "Share of the judging tokens that the provider had in its cache, and asks less for.",
            "percentunit",
            Query(_cached(), "cached"),
            size=(4, 5),
        ),
    ]


def _cached() -> str:
    cached = increase_by("", names.LLM_CACHED_TOKENS, window=SHOWN)
    return f"{cached} / ({increase_by('', names.LLM_TOKENS, window=SHOWN)} > 0)"


def _judging(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.time_series(
            "Dollars an hour",
            "At the rate of the moment, by role and model.",
            _DOLLARS,
            Query(f"{per_hour_by('role, model', names.LLM_COST)} > 0", "{{role}} {{model}}"),
            stacked=True,
        ),
        panels.time_series(
            "Tokens of judge and queen",
            "Tokens a second, by role and model.",
            TOKENS_A_SECOND,
            Query(f"{rate_by('role, model', names.LLM_TOKENS)} > 0", "{{role}} {{model}}"),
            stacked=True,
        ),
        panels.time_series(
            "Budget over time",
            "What has been spent of what may be, within the last hour and the last day.",
            "percentunit",
            Query(
                f"{highest_by('window, unit', names.LLM_BUDGET_SPENT)}"
                f" / {highest_by('window, unit', names.LLM_BUDGET_LIMIT)}",
                "{{unit}}, last {{window}}",
            ),
            lines=at.budget,
        ),
        panels.counts(
            "Answers of the rules",
            "In place of a model, by why. “budget”: it is spent.",
            Query(f"{counts_by('reason', names.LLM_FALLBACKS)} > 0", "{{reason}}"),
            colours=FALLBACKS,
        ),
        panels.time_series(
            "From the cache, by model",
            "Share of each model's tokens that the provider had in its cache.",
            "percentunit",
            Query(
                f"{rate_by('role, model', names.LLM_CACHED_TOKENS)}"
                f" / ({rate_by('role, model', names.LLM_TOKENS)} > 0)",
                "{{role}} {{model}}",
            ),
            most=1,
        ),
        panels.counts(
            "What it was spent on",
            "The judge's checks and the queen's decisions: what the money bought.",
            Query(counts_by("", names.JUDGE_CHECKS), "checks"),
            Query(counts_by("", names.TRIAGE), "decisions"),
        ),
    ]


def _work() -> list[AnyPanel]:
    return [
        panels.time_series(
            "Cost of the agents",
            "Dollars an hour that model calls cost, where the telemetry says it or the price table knows the "
            "model. Calls without a price are in no sum.",
            _DOLLARS,
            Query(f"{per_hour_by('agent', names.AGENT_COST)} > 0", "{{agent}}"),
            stacked=True,
            size=(6, 8),
        ),
        panels.time_series(
            "Model latency",
            "How long the calls of each model that succeed take: 95 % within, over all agents.",
            "s",
            Query(
                quantile_by("provider, model", 0.95, names.PROVIDER_CALL_DURATION), "{{provider}} {{model}}"
            ),
            size=(6, 8),
        ),
        panels.time_series(
            "Tokens of the agents by model",
            "Tokens a second, input and output together.",
            TOKENS_A_SECOND,
            Query(rate_by("model", names.WORKER_TOKENS), "{{model}}"),
            stacked=True,
            size=(6, 8),
        ),
        panels.time_series(
            "Share of output",
            "Share of the agents' tokens that a model wrote; the rest it read. Falling: prompts grow.",
            "percentunit",
            Query(share_of("model", names.WORKER_TOKENS, 'direction="output"'), "{{model}}"),
            most=1,
            size=(6, 8),
        ),
        series(
            "Most tokens",
            "The ten agents that used the most in the time shown, by model. Click one to see what it does.",
            f"topk(10, {increase_by('agent, model', names.WORKER_TOKENS, window=SHOWN)} > 0)",
            {"agent": "Agent", "model": "Model"},
            value=Column("Tokens", "", "short", lines=((1, BLUE),)),
            links={"agent": [agent_dashboard()]},
            size=(24, 8),
        ),
    ]
