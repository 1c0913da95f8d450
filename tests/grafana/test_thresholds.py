"""Threshold lines of the dashboards equal the settings."""

from __future__ import annotations

import json

import pytest

from queenright.alerting.rules.burn import SPEEDS
from queenright.grafana.export import render_dashboards
from queenright.health.objectives import (
    BUDGET_LOW_SHARE,
    DEGRADED_SHARE,
    FASTEST_BURN,
    INTERVENTION_TARGET_SECONDS,
    JUDGE_UNKNOWN_SHARE,
    LATE_SHARE,
    OUTBOX_STUCK_SECONDS,
    TOOL_ERROR_SHARE,
    compute_burn_threshold,
)
from queenright.health.settings import CLOCK_TOLERANCE_SECONDS, HealthSettings
from tests.grafana.committed_dashboards import (
    Dashboard,
    get_column_properties,
    get_panel,
    get_threshold_values,
)
from tools.dashboards.boards import dashboards

CUSTOM_SETTINGS = HealthSettings.model_validate(
    {
        "bands": {"warning": 2, "medium": 4, "high": 6, "critical": 9},
        "stall": {"idle_seconds": 700, "tool_seconds": 70},
        "heartbeat": {"interval_seconds": 11, "timeout_seconds": 33},
        "health_check": {"checkpoint_stale_threshold_seconds": 171},
        "judge": {"interval_seconds": 9, "triage_timeout_seconds": 17},
        "circuit_breaker": {"default": {"failure_threshold": 8}},
        "rules": {"bad_steps": {"error_budget": 0.2}},
    }
)


@pytest.fixture(scope="module", params=["defaults", "own"])
def settings_and_dashboards(request: pytest.FixtureRequest) -> tuple[HealthSettings, dict[str, Dashboard]]:
    """Return settings and the dashboards generated from them, by name."""
    settings = HealthSettings() if request.param == "defaults" else CUSTOM_SETTINGS
    return settings, {file[:-5]: json.loads(text) for file, text in dashboards(settings).items()}


SettingsAndDashboards = tuple[HealthSettings, dict[str, Dashboard]]


@pytest.mark.parametrize("name", ["fleet", "agent"])
def test_bad_step_lines_equal_the_detector_bands(
    settings_and_dashboards: SettingsAndDashboards, name: str
) -> None:
    settings, boards = settings_and_dashboards
    bands = settings.bands

    panel = get_panel(boards[name], "Bad steps since the last accept")

    assert get_threshold_values(panel) == [bands.warning, bands.medium, bands.high, bands.critical]
    assert panel["fieldConfig"]["defaults"]["custom"]["thresholdsStyle"]["mode"] != "off"


def test_clock_lines_equal_the_detector_thresholds(settings_and_dashboards: SettingsAndDashboards) -> None:
    settings, boards = settings_and_dashboards
    check, agent = settings.health_check, boards["agent"]

    assert get_threshold_values(get_panel(agent, "Time since last activity")) == sorted(
        [settings.stall.idle_seconds, settings.stall.tool_seconds]
    )
    assert get_threshold_values(get_panel(agent, "Time since last heartbeat")) == [
        settings.heartbeat.timeout_seconds
    ]
    assert get_threshold_values(get_panel(agent, "Time since last checkpoint")) == [
        check.checkpoint_degraded_seconds,
        check.checkpoint_stale_threshold_seconds,
    ]
    heartbeat_steps = get_column_properties(get_panel(boards["fleet"], "Agents"), "Since heartbeat")[
        "thresholds"
    ]["steps"]
    assert heartbeat_steps[-1]["value"] == settings.heartbeat.timeout_seconds


def test_judge_and_queen_lines_equal_their_settings(settings_and_dashboards: SettingsAndDashboards) -> None:
    settings, boards = settings_and_dashboards
    judge = settings.judge

    for name in ("fleet", "judge", "monitor"):
        last_check_values = get_threshold_values(get_panel(boards[name], "Last judge check"))
        assert last_check_values == [2 * judge.interval_seconds, 3 * judge.interval_seconds]
    assert get_threshold_values(get_panel(boards["judge"], "Time to decision")) == [
        judge.triage_timeout_seconds / 2,
        judge.triage_timeout_seconds,
    ]
    assert get_threshold_values(get_panel(boards["judge"], "Checks without a verdict")) == [
        JUDGE_UNKNOWN_SHARE
    ]


def test_rule_threshold_lines_equal_the_alerts(settings_and_dashboards: SettingsAndDashboards) -> None:
    settings, boards = settings_and_dashboards

    assert get_threshold_values(get_panel(boards["fleet"], "Unhealthy share of the fleet")) == [
        DEGRADED_SHARE
    ]
    assert get_threshold_values(get_panel(boards["fleet"], "Tool errors by tool")) == [TOOL_ERROR_SHARE]
    assert get_threshold_values(get_panel(boards["monitor"], "Oldest undelivered")) == [OUTBOX_STUCK_SECONDS]
    assert get_threshold_values(get_panel(boards["monitor"], "Clocks ahead of Prometheus")) == [
        CLOCK_TOLERANCE_SECONDS
    ]
    assert get_threshold_values(get_panel(boards["cost"], "Budget used")) == [BUDGET_LOW_SHARE, 1.0]
    assert get_threshold_values(get_panel(boards["interventions"], "Time to intervention (p90)")) == [
        INTERVENTION_TARGET_SECONDS
    ]
    assert get_threshold_values(get_panel(boards["breakers"], "Consecutive failures")) == [
        settings.circuit_breaker.default.failure_threshold
    ]


def test_objective_lines_are_the_budget_and_the_fastest_paging_burn(
    settings_and_dashboards: SettingsAndDashboards,
) -> None:
    settings, boards = settings_and_dashboards
    fastest = SPEEDS[0]

    assert fastest.factor == FASTEST_BURN
    for board, title, budget in (
        ("fleet", "Bad steps against the objective", settings.rules.bad_steps.error_budget),
        ("interventions", "Slow interventions against the objective", LATE_SHARE),
    ):
        assert get_threshold_values(get_panel(boards[board], title)) == pytest.approx(
            [budget, compute_burn_threshold(budget, fastest.factor)]
        )


@pytest.mark.parametrize("settings", [HealthSettings(), CUSTOM_SETTINGS])
def test_exported_dashboards_equal_the_generated_ones(settings: HealthSettings) -> None:
    console = "https://q.example/"

    assert render_dashboards(settings, console=console) == dashboards(settings, console=console)


def test_lines_ascend_for_any_settings(settings_and_dashboards: SettingsAndDashboards) -> None:
    for board in settings_and_dashboards[1].values():
        for item in board["panels"]:
            if item["type"] != "row" and "thresholds" in item["fieldConfig"]["defaults"]:
                assert get_threshold_values(item) == sorted(get_threshold_values(item)), item["title"]
