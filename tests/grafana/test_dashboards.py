"""Properties of the dashboards beyond Grafana's own rules."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import promql_parser as promql
import pytest
import yaml

from queenright.health.action_kind import ActionKind
from queenright.health.breakers.state_machine import BreakerState
from queenright.health.detection.health_state import HealthState
from queenright.health.findings import Severity
from queenright.health.interventions.intervention import InterventionOutcome
from queenright.health.settings import HealthSettings
from queenright.instrumentation import names
from queenright.judge.metrics import FallbackReason
from tests.grafana.committed_dashboards import (
    FOLDER,
    NAMES,
    Dashboard,
    get_panel,
    list_data_links,
    list_links,
    list_panels,
    load,
)
from tests.promql import list_kept_labels
from tools.dashboards.__main__ import main
from tools.dashboards.boards import dashboards
from tools.dashboards.links import UIDS
from tools.dashboards.queries import annotation_queries, queries
from tools.dashboards.states import (
    BREAKER_STATES,
    CHECKS,
    DECISIONS,
    DELIVERIES,
    FALLBACKS,
    KINDS,
    OUTCOMES,
    RECOVERIES,
    SEVERITIES,
    STATES,
    TOOL_OUTCOMES,
    VERDICTS,
)

RULES = Path(__file__).parents[2] / "alerting" / "prometheus" / "rules" / "recording.yml"
SCRAPE_LABELS = {"job", "instance"}
# Measured by the monitor between events, where there is no trace to link to.
TRACELESS = (names.DETECTION_DELAY, names.HEALTH_CHECK_DURATION, names.PROVIDER_CALL_DURATION)
ALERT_LABELS = {"alertname", "alertstate", "severity", "source", "agent"}


def list_recording_rules() -> dict[str, str]:
    """Return name and expression of the committed recording rules."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}


RECORDED = list_recording_rules()


def get_series_labels(name: str) -> set[str]:
    """Return the labels of a series; fail for a name that is never emitted."""
    if name == "ALERTS":
        return ALERT_LABELS
    if name == "up":
        return SCRAPE_LABELS
    if name in RECORDED:
        by_clause = re.search(r"by \(([^)]*)\)", RECORDED[name]) if not name.startswith("cluster:") else None
        return set(by_clause[1].split(", ")) if by_clause else set()
    metric = names.METRICS[re.sub(r"_(bucket|count)$", "", name)]
    assert (metric.kind == "histogram") == name.endswith(("_bucket", "_count")), name
    return {*metric.labels, *SCRAPE_LABELS, names.PARTITION_LABEL}


def test_committed_files_are_up_to_date() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}

    assert committed == dashboards(HealthSettings())
    assert set(committed) == {f"{name}.json" for name in NAMES}


def test_check_names_stale_missing_and_leftover_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--folder", str(tmp_path)]) == 0
    assert main(["--check", "--folder", str(tmp_path)]) == 0

    (tmp_path / "fleet.json").write_text("{}")
    (tmp_path / "agent.json").unlink()
    (tmp_path / "old.json").write_text("{}")

    assert main(["--check", "--folder", str(tmp_path)]) == 1
    assert re.findall(r"(\w+\.json)", capsys.readouterr().err) == ["agent.json", "fleet.json", "old.json"]


def test_links_to_a_dashboard_stay_valid() -> None:
    assert {name: load(name)["uid"] for name in NAMES} == {
        "fleet": "queenright-fleet",
        "agent": "queenright-agent",
        "judge": "queenright-judge",
        "interventions": "queenright-interventions",
        "breakers": "queenright-breakers",
        "monitor": "queenright-monitor",
        "cost": "queenright-cost",
        "cluster": "queenright-cluster",
    }
    assert set(UIDS) == set(NAMES)


def test_each_dashboard_has_one_question() -> None:
    descriptions = [load(name)["description"] for name in NAMES]

    assert all("?" in description for description in descriptions)
    assert len(set(descriptions)) == len(descriptions)


def test_dashboard_has_at_most_twenty_panels_with_unique_ids_and_titles(
    dashboard: Dashboard,
) -> None:
    ids = [item["id"] for item in dashboard["panels"]]
    titles = [item["title"] for item in list_panels(dashboard)]

    assert len(titles) <= 20
    assert len(set(ids)) == len(ids)
    assert len(set(titles)) == len(titles)


def test_panels_fill_the_grid_without_overlapping(dashboard: Dashboard) -> None:
    occupied_cells: set[tuple[int, int]] = set()
    for item in dashboard["panels"]:
        position = item["gridPos"]
        left, top = position["x"], position["y"]
        right, bottom = left + position["w"], top + position["h"]
        cells = {(x, y) for x in range(left, right) for y in range(top, bottom)}
        assert not cells & occupied_cells, item["title"]
        assert right <= 24
        occupied_cells |= cells

    height = max(y for _, y in occupied_cells) + 1
    assert len(occupied_cells) == 24 * height


def test_dashboard_starts_with_numbers_and_ends_with_details(dashboard: Dashboard) -> None:
    all_panels = list_panels(dashboard)

    assert all_panels[0]["type"] in {"stat", "state-timeline"}
    assert all_panels[-1]["type"] in {"timeseries", "table"}


def test_dashboards_link_to_each_other_with_variables_and_time(
    dashboard: Dashboard,
) -> None:
    dashboard_link, console_link = dashboard["links"]

    assert dashboard_link["type"] == "dashboards"
    assert dashboard_link["includeVars"]
    assert dashboard_link["keepTime"]
    assert set(dashboard_link["tags"]) <= set(dashboard["tags"])
    assert console_link["url"] == "${console:raw}/"


def test_link_to_another_dashboard_keeps_variables_and_time(dashboard: Dashboard) -> None:
    for item in list_panels(dashboard):
        for link in list_links(item):
            if not link["url"].startswith("${console:raw}/"):
                match = re.fullmatch(r"/d/([\w-]+)\?(.+)", link["url"])
                assert match is not None
                assert match[1] in UIDS.values()
                for parameter in ("datasource", "job", "instance", "console"):
                    assert f"${{{parameter}:queryparam}}" in match[2]
                assert "${__url_time_range}" in match[2]


def test_link_values_are_escaped_and_available_in_their_row(dashboard: Dashboard) -> None:
    for item in list_panels(dashboard):
        for link in list_data_links(item):
            for label, escape in re.findall(r'\$\{__data\.fields\["(\w+)"\](:\w+)?\}', link["url"]):
                assert escape == ":percentencode"
                assert any(
                    f"by ({label}" in target["expr"] or f", {label}" in target["expr"]
                    for target in item["targets"]
                )
            assert "__value" not in link["url"]


def test_console_url_is_a_dashboard_variable() -> None:
    files = dashboards(HealthSettings(), console="https://queenright.example.org/")
    variable = json.loads(files["fleet.json"])["templating"]["list"][-1]

    assert (variable["type"], variable["name"]) == ("textbox", "console")
    assert variable["query"] == variable["current"]["value"] == "https://queenright.example.org"
    assert load("fleet")["templating"]["list"][-1]["query"] == "http://127.0.0.1:8420"


def test_every_metric_and_label_is_emitted(dashboard: Dashboard) -> None:
    for query in queries(dashboard, variables={}):
        labels: set[str] = set()

        def collect_labels(node: promql.Expr, labels: set[str] = labels, text: str = query.expr) -> None:
            match node:
                case promql.VectorSelector(name=str(name), matchers=matchers):
                    emitted_labels = get_series_labels(name)
                    labels |= emitted_labels
                    matcher_names = {matcher.name for matcher in matchers.matchers}
                    assert matcher_names <= emitted_labels, text
                case _:
                    pass

        promql.walk(promql.parse(query.expr), collect_labels)
        by_label_names = {
            label
            for by_labels in re.findall(r"by \(([^)]*)\)", query.expr)
            for label in by_labels.split(", ")
        }
        assert by_label_names - {""} <= labels | {"le"}, query.expr


def test_cluster_series_have_no_target_labels() -> None:
    cluster_metrics = {
        name
        for board in map(load, NAMES)
        for query in queries(board, variables={})
        for name in re.findall(r"cluster:[\w:]+", query.expr)
    }

    assert cluster_metrics
    for name in cluster_metrics:
        assert list_kept_labels(RECORDED[name]) <= {"le"}, name


def test_legends_use_labels_that_the_query_keeps(dashboard: Dashboard) -> None:
    for item in list_panels(dashboard):
        for target in item["targets"]:
            kept_labels = {
                label
                for by_labels in re.findall(r"by \(([^)]*)\)", target["expr"])
                for label in re.findall(r"\w+", by_labels)
            }
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept_labels, item["title"]


def test_only_histograms_over_time_have_exemplars(dashboard: Dashboard) -> None:
    for item in list_panels(dashboard):
        for target in item["targets"]:
            is_over_time = "_bucket" in target["expr"] and target.get("range", False)
            has_traces = not any(metric.name in target["expr"] for metric in TRACELESS)
            assert target["exemplar"] == (is_over_time and has_traces), item["title"]


def test_range_number_is_an_instant_query(dashboard: Dashboard) -> None:
    for item in list_panels(dashboard):
        for target in item["targets"]:
            if "$__range" in target["expr"]:
                assert target["instant"], item["title"]
                assert not target.get("range"), item["title"]


def test_bars_cover_every_interval(dashboard: Dashboard) -> None:
    for item in list_panels(dashboard):
        has_bars = item["fieldConfig"]["defaults"].get("custom", {}).get("drawStyle") == "bars"
        assert (item.get("interval") == "1m") == has_bars, item["title"]
        for target in item["targets"]:
            # Grafana's rate interval is a scrape longer than the step, which is the width of a bar.
            bar_query = re.search(
                r"rate\([^[]+\[\$__rate_interval\]\)\) \* \$__interval_ms / 1000", target["expr"]
            )
            assert bool(bar_query) == has_bars, item["title"]


def test_outcome_series_have_their_colour(dashboard: Dashboard) -> None:
    for item in list_panels(dashboard):
        for target in item["targets"]:
            if (
                target["legendFormat"] in ("{{outcome}}", "{{reason}}", "{{verdict}}")
                and item["type"] == "timeseries"
            ):
                fixed_series = {
                    override["matcher"]["options"] for override in item["fieldConfig"]["overrides"]
                }
                assert len(fixed_series) >= 2, item["title"]


def test_annotations_show_notifications_interventions_and_alerts(dashboard: Dashboard) -> None:
    exprs = {query.panel: query.expr for query in annotation_queries(dashboard, variables={})}

    assert names.TRIAGE.name in exprs["Operator notified"]
    assert names.INTERVENTIONS.name in exprs["Interventions"]
    assert 'ALERTS{alertstate="firing"' in exprs["Firing alerts"]


@pytest.mark.parametrize(
    ("colours", "values"),
    [
        (dict(VERDICTS), {"accept", "continue", "retry", "escalate", "error"}),
        (dict(DECISIONS), {"dismiss", "intervene", "bypass"}),
        (dict(FALLBACKS), set(get_args(FallbackReason))),
        (dict(TOOL_OUTCOMES), set(names.ToolOutcome)),
        (dict(CHECKS), {"healthy", "ticket", "unknown"}),
        (dict(DELIVERIES), {"delivered", "retried", "failed"}),
        (dict(KINDS), {kind.value for kind in ActionKind}),
        (
            dict(OUTCOMES),
            {outcome.value for outcome in InterventionOutcome}
            - {InterventionOutcome.STARTED.value, InterventionOutcome.QUEUED.value},
        ),
        (dict(RECOVERIES), {"initiated", "from_start", "completed", "failed", "exhausted"}),
        (SEVERITIES, set(Severity)),
        (STATES, set(HealthState) - {HealthState.TERMINATED}),
        (BREAKER_STATES, {state.value for state in BreakerState}),
    ],
)
def test_every_state_has_its_colour(colours: dict[str, Any], values: set[str]) -> None:
    assert set(colours) == values


def test_states_sort_by_urgency() -> None:
    state_order = sorted(STATES, key=lambda state: STATES[state][0], reverse=True)
    breaker_order = sorted(BREAKER_STATES, key=lambda state: BREAKER_STATES[state][0], reverse=True)

    assert state_order == ["failing", "stuck", "degraded", "healthy"]
    assert breaker_order == ["open", "half_open", "closed"]
    assert get_panel(load("fleet"), "Agents")["options"]["sortBy"] == [{"displayName": "State", "desc": True}]
