"""The dashboard of judge and queen: what do they decide, and how soon?"""

from __future__ import annotations

from queenright.grafana import panels
from queenright.grafana.links import panel_link
from queenright.grafana.panels import AnyPanel, Query, Row
from queenright.grafana.promql import (
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
from queenright.grafana.states import (
    BLUE,
    CHECKS,
    DECISIONS,
    FALLBACKS,
    ORANGE,
    SEVERITIES,
    WITHIN,
    YELLOW,
)
from queenright.grafana.thresholds import Thresholds
from queenright.instrumentation import names

TITLE = "Judge & Queen"
QUESTION = "What do judge and queen decide, how soon, and is it them or the rules who do?"


def rows(at: Thresholds) -> list[Row]:
    """Return the panels, with lines at these thresholds."""
    return [
        Row("Are they at work?", _now(at)),
        Row("What the judge sees", _checks(at)),
        Row("What the queen decides", _triage(at)),
        Row("The models behind them", _models()),
    ]


def last_look(at: Thresholds) -> AnyPanel:
    """Return how long ago the judge finished a check."""
    return panels.numbers(
        "Judge's last look",
        "Time since the judge finished a check. The colours are two and three of its intervals.",
        "s",
        Query(age_by("", names.JUDGE_LAST_CHECK), "ago"),
        size=(4, 4),
        lines=at.judge,
    )


def _now(at: Thresholds) -> list[AnyPanel]:
    return [
        last_look(at),
        panels.numbers(
            "Checks",
            "What the judge said in the time shown: healthy, a ticket, or that it could not tell.",
            "short",
            Query(increase_by("outcome", names.JUDGE_CHECKS, window=SHOWN), "{{outcome}}"),
            size=(7, 4),
        ),
        panels.numbers(
            "Decisions",
            "What became of tickets in the time shown. "
            "Bypass: the queen did not answer in time, so people were told.",
            "short",
            Query(increase_by("decision", names.TRIAGE, window=SHOWN), "{{decision}}"),
            size=(7, 4),
        ),
        panels.numbers(
            "Open tickets",
            "Tickets that are not closed, by what is being done about them.",
            "none",
            Query(
                f"{total_by('status', names.TICKETS_OPEN)}"
                f" or on () {while_known(0, names.AGENTS, label='status', word='open')}",
                "{{status}}",
            ),
            size=(6, 4),
            colours=[("open", ORANGE), ("intervening", YELLOW), ("acknowledged", BLUE)],
        ).links([panel_link("The tickets", "")]),
    ]


def _checks(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.counts(
            "Checks by outcome",
            "The judge's checks of workers. Unknown: it could not look, or its model gave no usable answer.",
            Query(counts_by("outcome", names.JUDGE_CHECKS), "{{outcome}}"),
            colours=CHECKS,
        ),
        panels.time_series(
            "Checks that say nothing",
            "Share of the checks that ended unknown. From the line on we tell you that the judge fails.",
            "percentunit",
            Query(share_of("", names.JUDGE_CHECKS, 'outcome="unknown"'), "unknown"),
            lines=at.unknown,
            most=1,
        ),
        panels.counts(
            "Findings in shadow",
            "What detectors on trial saw. Nothing followed from it; compare before you switch one on.",
            Query(f"{counts_by('kind', names.SHADOW_FINDINGS)} > 0", "{{kind}}"),
        ),
        panels.counts(
            "Tickets opened by cause",
            "New escalations. One condition is one ticket, however often it is seen.",
            Query(f"{counts_by('cause', names.TICKETS)} > 0", "{{cause}}"),
        ),
        panels.counts(
            "Tickets opened by severity",
            "The same, by how bad it is. Critical and high ones page.",
            Query(f"{counts_by('severity', names.TICKETS)} > 0", "{{severity}}"),
            colours=SEVERITIES.items(),
        ),
        panels.time_series(
            "Open tickets over time",
            "Tickets that are not closed. A line that only rises: nobody looks at them.",
            "none",
            Query(total_by("severity", names.TICKETS_OPEN), "{{severity}}"),
            stacked=True,
            colours=SEVERITIES.items(),
        ),
    ]


def _triage(at: Thresholds) -> list[AnyPanel]:
    return [
        panels.counts(
            "Triage by decision",
            "What the queen decided: dismiss, intervene, or bypass when triage did not answer in time.",
            Query(counts_by("decision", names.TRIAGE), "{{decision}}"),
            size=(6, 8),
            colours=DECISIONS,
        ),
        panels.time_series(
            "Dismissed",
            "Share of the tickets that the queen found to be nothing. Near 1: detectors or judge are too "
            "strict. Always 0: the queen stops nothing.",
            "percentunit",
            Query(share_of("", names.TRIAGE, 'decision="dismiss"'), "dismissed"),
            size=(6, 8),
            most=1,
        ),
        panels.time_series(
            "From ticket to decision",
            "How long the queen took. The lines: what is high or critical goes to people without her, "
            "and everything does. The dots lead to traces.",
            "s",
            Query(quantile_by("", 0.5, names.TRIAGE_DURATION), "half within", exemplars=True),
            Query(quantile_by("", 0.95, names.TRIAGE_DURATION), "95 % within", exemplars=True),
            colours=WITHIN,
            size=(6, 8),
            lines=at.triage,
        ),
        panels.heat_map(
            "Times to decision",
            "How the times from ticket to decision are spread.",
            "s",
            Query(buckets_of(names.TRIAGE_DURATION), "{{le}}", exemplars=True),
            size=(6, 8),
        ),
    ]


def _models() -> list[AnyPanel]:
    return [
        panels.time_series(
            "Time to an answer",
            "The time within which 95 % of the answers came, by role and model; the dots lead to traces.",
            "s",
            Query(
                quantile_by("role, model", 0.95, names.LLM_REQUEST_DURATION),
                "{{role}} {{model}}",
                exemplars=True,
            ),
        ),
        panels.counts(
            "Answers of a model",
            "How often a model was asked, by role and model, whether or not its answer could be used.",
            Query(
                counts_by("role, model", names.LLM_REQUEST_DURATION, suffix="_count"), "{{role}} {{model}}"
            ),
        ),
        panels.counts(
            "Answers of the rules in its place",
            "How often the rules answered because the model did not, and why not. "
            "While this goes on, judging is by rule.",
            Query(f"{counts_by('role, reason', names.LLM_FALLBACKS)} > 0", "{{role}}: {{reason}}"),
            patterns=[(f"/: {reason}$/", colour) for reason, colour in FALLBACKS],
        ),
    ]
