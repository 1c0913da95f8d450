"""
Multi-window alerts on the burn rate of the monthly error budget.

Each rule has a long window, which shows that the burn is significant, and a short window, which shows that it
continues (Google's "Site Reliability Workbook", chapter 5). Rates over five minutes are recorded, and longer
windows average them, so that a query over three days of a large fleet is cheap. The limits are defined in
``queenright.health.objectives``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from queenright.alerting.rules.promql import format_duration_in_words, select
from queenright.alerting.rules.rule import Alert, RecordingRule, Selectors, Severity
from queenright.health.objectives import (
    FASTEST_BURN,
    INTERVENTION_TARGET_SECONDS,
    LATE_SHARE,
    can_burn,
    compute_burn_threshold,
)
from queenright.health.settings import HealthSettings
from queenright.instrumentation import names

STEPS: Final = "agent_verdict:queenright_worker_steps:rate5m"
_RATE_WINDOW: Final = "5m"
_MINIMUM_STEPS: Final = 100
_MINIMUM_PROBLEMS: Final = 20
# With fewer events in the longer window, a single one would change the share by more than the objective.
_WINDOW_SECONDS: Final = {
    "5m": 300,
    "30m": 1800,
    "1h": 3600,
    "2h": 7200,
    "6h": 21_600,
    "1d": 86_400,
    "3d": 259_200,
}


@dataclass(frozen=True, slots=True)
class Speed:
    """
    A pair of windows with a burn-rate factor. ``spends`` says how much of the budget is spent, and in what
    time.
    """

    factor: float
    short: str
    long: str
    severity: Severity
    for_: str
    keep: str
    spends: str


SPEEDS: Final = (
    Speed(FASTEST_BURN, "5m", "1h", "critical", "2m", "5m", "2% in an hour"),
    Speed(6, "30m", "6h", "critical", "5m", "10m", "5% in six hours"),
    Speed(3, "2h", "1d", "warning", "15m", "30m", "10% in a day"),
    Speed(1, "6h", "3d", "warning", "30m", "1h", "10% in three days"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A service level objective: its rates, error budget and the texts of its alerts."""

    alert: str
    name: str
    all_name: str
    all_rate: str
    bad_rate: str
    budget: float
    minimum: int
    unit: str
    setting: str
    """The setting for the budget; "" if there is none."""
    summary: str
    description: str
    reason: str
    dashboard: str

    @property
    def bad(self) -> str:
        """The recorded rate of bad events, per second."""
        return f"cluster:{self.name}:rate{_RATE_WINDOW}"

    @property
    def all(self) -> str:
        """The recorded rate of all events, per second."""
        return f"cluster:{self.all_name}:rate{_RATE_WINDOW}"

    def ratio(self, window: str) -> str:
        """The recorded share of bad events within ``window``."""
        return f"cluster:{self.name}:ratio_rate{window}"


def objectives(settings: HealthSettings, selectors: Selectors) -> tuple[Objective, ...]:
    """Return the objectives of the fleet."""
    bound = f'le="{INTERVENTION_TARGET_SECONDS:.1f}"'
    intervention_count = select(selectors, names.TIME_TO_INTERVENTION, suffix="_count")
    in_time = select(selectors, names.TIME_TO_INTERVENTION, bound, suffix="_bucket")
    return (
        Objective(
            alert="QueenrightBadStepsBurn",
            name="queenright_worker_bad_steps",
            all_name="queenright_worker_steps",
            all_rate=f"sum({STEPS})",
            bad_rate=f'sum({STEPS}{{verdict=~"retry|escalate|error"}})',
            budget=settings.rules.bad_steps.error_budget,
            minimum=_MINIMUM_STEPS,
            unit="steps",
            setting="health_monitoring.rules.bad_steps.error_budget",
            summary="Too many of the fleet's steps are bad.",
            description="of all steps were bad (retry, escalate, error)",
            reason="the fleet as a whole may do poor work although each worker is within its limits",
            dashboard="queenright-fleet",
        ),
        Objective(
            alert="QueenrightSlowInterventionsBurn",
            name="queenright_slow_interventions",
            all_name="queenright_first_interventions",
            all_rate=f"sum(rate({intervention_count}[5m]))",
            bad_rate=f"sum(rate({intervention_count}[5m])) - sum(rate({in_time}[5m]))",
            budget=LATE_SHARE,
            minimum=_MINIMUM_PROBLEMS,
            unit="problems",
            setting="",
            summary="Too many interventions start too late.",
            description="of the problems waited more than "
            f"{format_duration_in_words(INTERVENTION_TARGET_SECONDS)} for the first intervention",
            reason="a stuck worker costs money until somebody intervenes",
            dashboard="queenright-interventions",
        ),
    )


def records(settings: HealthSettings, selectors: Selectors) -> tuple[RecordingRule, ...]:
    """Return the recording rules: rates over five minutes, and shares over every window."""
    return tuple(
        record for objective in objectives(settings, selectors) for record in _recording_rules(objective)
    )


def _recording_rules(objective: Objective) -> Iterator[RecordingRule]:
    yield RecordingRule(name=objective.all, expr=objective.all_rate)
    yield RecordingRule(
        name=objective.bad,
        expr=f"{objective.bad_rate}\nor\n0 * {objective.all_rate}",
        why="Without any bad event there is no series, which means 0, not unknown.",
    )
    for window in _WINDOW_SECONDS:
        parts = (f"avg_over_time({part}[{window}])" for part in (objective.bad, objective.all))
        yield RecordingRule(name=objective.ratio(window), expr="\n/\n".join(parts))


def alerts(settings: HealthSettings, selectors: Selectors) -> tuple[Alert, ...]:
    """Return one alert for each objective and speed."""
    return tuple(
        _alert(objective, speed) for objective in objectives(settings, selectors) for speed in SPEEDS
    )


def _alert(objective: Objective, speed: Speed) -> Alert:
    limit_expression = _limit_expression(objective.budget, speed.factor)
    traffic = (
        f"{_WINDOW_SECONDS[speed.long]} * avg_over_time({objective.all}[{speed.long}]) >= {objective.minimum}"
    )
    budget = f"{100 * objective.budget:.3g}%"
    share = f"{100 * compute_burn_threshold(objective.budget, speed.factor):.3g}%"
    setting = f"`{objective.setting}` ({budget})" if objective.setting else f"the {budget} that are allowed"
    if can_burn(objective.budget, speed.factor):
        times = f"at least {speed.factor:g} times " if speed.factor > 1 else ""
        how_fast = f"allows {budget}, which is spent {times}too fast"
        threshold = f"{speed.factor:g} times {setting}" if speed.factor > 1 else setting
        why = f"{speed.spends} of a month's budget: {objective.reason}"
    else:
        how_fast = f"allows {budget}"
        threshold, why = f"far above {setting}", f"{objective.reason}, and here nearly everything fails"
    return Alert(
        name=objective.alert,
        expr=f"{objective.ratio(speed.long)} > {limit_expression}\nand\n"
        f"{objective.ratio(speed.short)} > {limit_expression}\nand\n{traffic}",
        for_=speed.for_,
        keep_firing_for=speed.keep,
        severity=speed.severity,
        labels={"window": speed.long},
        summary=objective.summary,
        description=f"{{{{ $value | humanizePercentage }}}} {objective.description} "
        f"in the last {speed.long}; the objective {how_fast}.",
        threshold=f"> {share} over {speed.short} and {speed.long}: {threshold}, "
        f"of at least {objective.minimum} {objective.unit}",
        reason=why,
        dashboard=objective.dashboard,
    )


def _limit_expression(budget: float, factor: float) -> str:
    """Return an expression for the result of ``compute_burn_threshold`` that shows how it is computed."""
    if can_burn(budget, factor):
        return f"{factor:g} * {budget:g}"
    return f"1 - {1 - budget:g} ^ {factor:g}"
