"""The Judge & Queen dashboard: their decisions and response times."""

from __future__ import annotations

from queenright.grafana.export import BLUE, ORANGE, YELLOW, Thresholds
from queenright.instrumentation import names
from tools.dashboards import limits, panels
from tools.dashboards.links import panel_link
from tools.dashboards.panels import AnyPanel, Query, Row
from tools.dashboards.promql import (
    SHOWN,
    age_by,
    buckets_of,
    counts_by,
    increase_by,
    quantile_by,
    share_of,
    total_by,
    while_known,
)
from tools.dashboards.states import CHECKS, DECISIONS, FALLBACKS, SEVERITIES, WITHIN

TITLE = "Judge & Queen"
QUESTION = "What do judge and queen decide, how fast, and how often do the rules decide instead?"


def rows(at: Thresholds) -> list[Row]:
    """Return the panels, with lines at these thresholds."""
    return [
        Row("Overview", _current_panels(at)),
        Row("Judge", _check_panels(at)),
        Row("Queen (triage)", _triage_panels(at)),
        Row("Models", _model_panels()),
    ]


def last_check(at: Thresholds) -> AnyPanel:
    """Return a panel with the time since the judge's last check."""
    return panels.numbers(
        "Last judge check",
        "Time since the judge finished a check. The colours start at two and three of its intervals.",
        "s",
        Query(age_by("", names.JUDGE_LAST_CHECK), "ago"),
        size=(4, 4),
        lines=at.judge,
    )


def _current_panels(at: Thresholds) -> list[AnyPanel]:
    return [
        last_check(at),
        panels.numbers(
            "Checks",
            "Checks of the judge in the time range: healthy, ticket, or unknown.",
            "short",
            Query(increase_by("outcome", names.JUDGE_CHECKS, window=SHOWN), "{{outcome}}"),
            size=(7, 4),
        ),
        panels.numbers(
            "Decisions",
            "Triage of tickets in the time range. "
            "“bypass” means that the queen did not answer in time, so people were notified.",
            "short",
            Query(increase_by("decision", names.TRIAGE, window=SHOWN), "{{decision}}"),
            size=(7, 4),
        ),
        panels.numbers(
            "Open tickets",
            "Open tickets by status.",
            "none",
            Query(
                f"{total_by('status', names.TICKETS_OPEN)}"
                f" or on () {while_known(0, names.AGENTS, label='status', word='open')}",
                "{{status}}",
            ),
            size=(6, 4),
            colours=[("open", ORANGE), ("intervening", YELLOW), ("acknowledged", BLUE)],
        ).links([panel_link("Tickets", "")]),
    ]


def _check_panels(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.counts(
            "Checks by outcome",
            "Checks of the judge. “unknown” means that it had no data, or that its model gave no usable "
            "answer.",
            Query(counts_by("outcome", names.JUDGE_CHECKS), "{{outcome}}"),
            colours=CHECKS,
        ),
        panels.time_series(
            "Checks without a verdict",
            "Share of the checks that ended unknown. Above the line, QueenrightJudgeFailing fires.",
            "percentunit",
            Query(share_of("", names.JUDGE_CHECKS, 'outcome="unknown"'), "unknown"),
            lines=limits.UNKNOWN,
            maximum=1,
        ),
        panels.counts(
            "Findings in shadow",
            "Findings of shadow detectors, which take no action. Compare them before you enable a detector.",
            Query(f"{counts_by('kind', names.SHADOW_FINDINGS)} > 0", "{{kind}}"),
        ),
        panels.counts(
            "Tickets opened by cause",
            "New tickets by cause. A repeated condition stays one ticket.",
            Query(f"{counts_by('cause', names.TICKETS)} > 0", "{{cause}}"),
        ),
        panels.counts(
            "Tickets opened by severity",
            "New tickets by severity. Critical and high tickets page.",
            Query(f"{counts_by('severity', names.TICKETS)} > 0", "{{severity}}"),
            colours=SEVERITIES.items(),
        ),
        panels.time_series(
            "Open tickets over time",
            "Open tickets. If it only rises, nobody works on them.",
            "none",
            Query(total_by("severity", names.TICKETS_OPEN), "{{severity}}"),
            is_stacked=True,
            colours=SEVERITIES.items(),
        ),
    ]


def _triage_panels(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.counts(
            "Triage by decision",
            "Decisions of the queen: dismiss, intervene, or bypass if triage did not answer in time.",
            Query(counts_by("decision", names.TRIAGE), "{{decision}}"),
            size=(6, 8),
            colours=DECISIONS,
        ),
        panels.time_series(
            "Dismissed",
            "Share of the tickets that the queen dismissed. Near 1, the detectors or the judge are too "
            "strict. If it is always 0, the queen filters nothing.",
            "percentunit",
            Query(share_of("", names.TRIAGE, 'decision="dismiss"'), "dismissed"),
            size=(6, 8),
            maximum=1,
        ),
        panels.time_series(
            "Time to decision",
            "Time from ticket to decision. Above the first line, high and critical tickets bypass the queen; "
            "above the second, all do. Dots link to traces.",
            "s",
            Query(quantile_by("", 0.5, names.TRIAGE_DURATION), "p50", exemplars=True),
            Query(quantile_by("", 0.95, names.TRIAGE_DURATION), "p95", exemplars=True),
            colours=WITHIN,
            size=(6, 8),
            lines=at.triage,
        ),
        panels.heat_map(
            "Time to decision, distribution",
            "Distribution of the time from ticket to decision.",
            "s",
            Query(buckets_of(names.TRIAGE_DURATION), "{{le}}", exemplars=True),
            size=(6, 8),
        ),
    ]


def _model_panels() -> list[AnyPanel]:
    return [
        panels.time_series(
            "Model latency (p95)",
            "95th percentile of model latency, by role and model. Dots link to traces.",
            "s",
            Query(
                quantile_by("role, model", 0.95, names.LLM_REQUEST_DURATION),
                "{{role}} {{model}}",
                exemplars=True,
            ),
        ),
        panels.counts(
            "Model requests",
            "Model requests by role and model, whether or not the answer was usable.",
            Query(
                counts_by("role, model", names.LLM_REQUEST_DURATION, suffix="_count"), "{{role}} {{model}}"
            ),
        ),
        panels.counts(
            "Rule fallbacks",
            "Decisions of the rules instead of the model, by reason.",
            Query(f"{counts_by('role, reason', names.LLM_FALLBACKS)} > 0", "{{role}}: {{reason}}"),
            patterns=[(f"/: {reason}$/", colour) for reason, colour in FALLBACKS],
        ),
    ]
