"""The LLM cost dashboard: the cost of judging and of the agents."""

from __future__ import annotations

from queenright.grafana.export import BLUE, Thresholds
from queenright.instrumentation import names
from tools.dashboards import limits, panels
from tools.dashboards.links import agent_dashboard
from tools.dashboards.panels import TOKENS_PER_SECOND, AnyPanel, Query, Row
from tools.dashboards.promql import (
    SHOWN,
    counts_by,
    highest_by,
    increase_by,
    per_hour_by,
    quantile_by,
    rate_by,
    share_of,
)
from tools.dashboards.states import FALLBACKS
from tools.dashboards.tables import Column, series

TITLE = "LLM cost"
QUESTION = "What does judging cost, is it within its budget, and what do the agents use?"

_DOLLARS = "currencyUSD"


def rows(at: Thresholds) -> list[Row]:
    """Return the panels, with lines at these thresholds."""
    return [
        Row("Judging cost", _current_panels(at)),
        Row("Judging details", _judging_panels(at)),
        Row("Agent usage", _work_panels()),
    ]


def _current_panels(at: Thresholds) -> list[AnyPanel]:
    spending = increase_by("", names.LLM_COST, window=SHOWN)
    return [
        panels.numbers(
            "Spent",
            "Cost of judging and triage in the time range.",
            _DOLLARS,
            Query(spending, "judging"),
            size=(4, 5),
        ),
        panels.numbers(
            "Cost per ticket",
            "Cost of judging per ticket opened in the time range.",
            _DOLLARS,
            Query(f"{spending} / ({increase_by('', names.TICKETS, window=SHOWN)} > 0)", "each"),
            size=(4, 5),
        ),
        panels.numbers(
            "Cost per check",
            "Cost of judging per check of the judge in the time range.",
            _DOLLARS,
            Query(f"{spending} / ({increase_by('', names.JUDGE_CHECKS, window=SHOWN)} > 0)", "each"),
            size=(4, 5),
        ),
        panels.gauges(
            "Budget used",
            "Cost of judging in the last hour and day as a share of the budget. At orange, a warning "
            "fires. At 100 %, the rules decide until the share is below 100 % again. Empty without a "
            "limit.",
            "percentunit",
            Query(
                f"{highest_by('window, unit', names.LLM_BUDGET_SPENT)}"
                f" / {highest_by('window, unit', names.LLM_BUDGET_LIMIT)}",
                "{{unit}}, last {{window}}",
            ),
            size=(8, 5),
            lines=limits.BUDGET,
            maximum=1,
        ),
        panels.numbers(
            "Cached tokens",
            "Share of the judging tokens read from the provider's cache, which cost less.",
            "percentunit",
            Query(_cache_share(), "cached"),
            size=(4, 5),
        ),
    ]


def _cache_share() -> str:
    cache_tokens = increase_by("", names.LLM_CACHED_TOKENS, window=SHOWN)
    return f"{cache_tokens} / ({increase_by('', names.LLM_TOKENS, window=SHOWN)} > 0)"


def _judging_panels(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.time_series(
            "Cost per hour",
            "At the current rate, by role and model.",
            _DOLLARS,
            Query(f"{per_hour_by('role, model', names.LLM_COST)} > 0", "{{role}} {{model}}"),
            is_stacked=True,
        ),
        panels.time_series(
            "Tokens of judge and queen",
            "Tokens per second, by role and model.",
            TOKENS_PER_SECOND,
            Query(f"{rate_by('role, model', names.LLM_TOKENS)} > 0", "{{role}} {{model}}"),
            is_stacked=True,
        ),
        panels.time_series(
            "Budget over time",
            "Share of the budget used in the last hour and the last day.",
            "percentunit",
            Query(
                f"{highest_by('window, unit', names.LLM_BUDGET_SPENT)}"
                f" / {highest_by('window, unit', names.LLM_BUDGET_LIMIT)}",
                "{{unit}}, last {{window}}",
            ),
            lines=limits.BUDGET,
        ),
        panels.counts(
            "Rule fallbacks",
            "Decisions that the rules made instead of a model, by reason. “budget” means that the budget "
            "is spent.",
            Query(f"{counts_by('reason', names.LLM_FALLBACKS)} > 0", "{{reason}}"),
            colours=FALLBACKS,
        ),
        panels.time_series(
            "Cached tokens by model",
            "Share of each model's tokens read from the provider's cache.",
            "percentunit",
            Query(
                f"{rate_by('role, model', names.LLM_CACHED_TOKENS)}"
                f" / ({rate_by('role, model', names.LLM_TOKENS)} > 0)",
                "{{role}} {{model}}",
            ),
            maximum=1,
        ),
        panels.counts(
            "Checks and decisions",
            "Checks of the judge and decisions of the queen.",
            Query(counts_by("", names.JUDGE_CHECKS), "checks"),
            Query(counts_by("", names.TRIAGE), "decisions"),
        ),
    ]


def _work_panels() -> list[AnyPanel]:
    return [
        panels.time_series(
            "Cost of the agents",
            "Cost of model calls in dollars per hour, from the telemetry or the price table. Calls without a "
            "known price are not included.",
            _DOLLARS,
            Query(f"{per_hour_by('agent', names.AGENT_COST)} > 0", "{{agent}}"),
            is_stacked=True,
            size=(6, 8),
        ),
        panels.time_series(
            "Model latency",
            "95th percentile of the duration of successful calls of each model, over all agents.",
            "s",
            Query(
                quantile_by("provider, model", 0.95, names.PROVIDER_CALL_DURATION), "{{provider}} {{model}}"
            ),
            size=(6, 8),
        ),
        panels.time_series(
            "Tokens of the agents by model",
            "Tokens per second, input and output together.",
            TOKENS_PER_SECOND,
            Query(rate_by("model", names.WORKER_TOKENS), "{{model}}"),
            is_stacked=True,
            size=(6, 8),
        ),
        panels.time_series(
            "Output token share",
            "Share of output tokens in the agents' tokens. If it falls, prompts grow.",
            "percentunit",
            Query(share_of("model", names.WORKER_TOKENS, 'direction="output"'), "{{model}}"),
            maximum=1,
            size=(6, 8),
        ),
        series(
            "Top token users",
            "The ten agents with the most tokens in the time range, by model. Click one for its dashboard.",
            f"topk(10, {increase_by('agent, model', names.WORKER_TOKENS, window=SHOWN)} > 0)",
            {"agent": "Agent", "model": "Model"},
            value=Column("Tokens", "", "short", lines=((1, BLUE),)),
            links={"agent": [agent_dashboard()]},
            size=(24, 8),
        ),
    ]
