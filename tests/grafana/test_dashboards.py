"""What the dashboards promise beyond Grafana's own rules."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest

from queenright.grafana import annotation_queries, queries
from queenright.grafana.__main__ import main, rendered
from queenright.grafana.states import SEVERITIES, STATES
from queenright.health.findings import HealthState, Severity
from queenright.health.settings import HealthSettings
from queenright.instrumentation import names

Dashboard = dict[str, Any]

FOLDER = Path(__file__).parents[2] / "grafana" / "dashboards"
SCRAPED = {"job", "instance"}


def panel(board: Dashboard, title: str) -> dict[str, Any]:
    found: dict[str, Any] = next(p for p in board["panels"] if p["title"] == title)
    return found


def load(name: str) -> Dashboard:
    loaded: Dashboard = json.loads((FOLDER / f"{name}.json").read_text())
    return loaded


def lines(shown: dict[str, Any]) -> list[float]:
    return [step["value"] for step in shown["fieldConfig"]["defaults"]["thresholds"]["steps"][1:]]


def test_the_committed_files_are_what_the_code_makes() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")} == rendered()


def test_check_tells_a_stale_and_a_missing_and_a_leftover_file(
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
    assert (load("fleet")["uid"], load("agent")["uid"]) == ("queenright-fleet", "queenright-agent")


def test_a_dashboard_has_at_most_twenty_panels_with_ids_that_do_not_repeat(dashboard: Dashboard) -> None:
    ids = [shown["id"] for shown in dashboard["panels"]]

    assert len(ids) <= 20
    assert len(set(ids)) == len(ids)


def test_panels_fill_the_grid_without_overlapping(dashboard: Dashboard) -> None:
    taken: set[tuple[int, int]] = set()
    for shown in dashboard["panels"]:
        at = shown["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, shown["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells

    height = max(y for _, y in taken) + 1
    assert len(taken) == 24 * height


def test_links_and_tags_lead_from_one_dashboard_to_the_next_with_variables_and_time(
    dashboard: Dashboard,
) -> None:
    [link] = dashboard["links"]

    assert (link["type"], link["includeVars"], link["keepTime"]) == ("dashboards", True, True)
    assert set(link["tags"]) <= set(dashboard["tags"])


def test_the_link_from_a_fleet_row_keeps_variables_and_time_and_names_the_agent() -> None:
    overrides = panel(load("fleet"), "Who needs me now")["fieldConfig"]["overrides"]
    [link] = [
        link
        for override in overrides
        for p in override["properties"]
        if p["id"] == "links"
        for link in p["value"]
    ]

    assert link["url"].startswith("/d/queenright-agent?")
    for kept in ("var-agent=", "${datasource:queryparam}", "${job:queryparam}", "${instance:queryparam}"):
        assert kept in link["url"]
    assert "${__url_time_range}" in link["url"]


def test_every_metric_and_every_label_is_one_that_is_emitted(dashboard: Dashboard) -> None:
    for query in queries(dashboard, variables={}):
        labels: set[str] = set()

        def look(node: promql.Expr, labels: set[str] = labels, text: str = query.expr) -> None:
            match node:
                case promql.VectorSelector(name=str(name), matchers=matchers):
                    metric = names.METRICS[name.removesuffix("_bucket")]
                    assert (metric.kind == "histogram") == name.endswith("_bucket"), text
                    labels |= {*metric.labels, *SCRAPED}
                    used = {matcher.name for matcher in matchers.matchers}
                    assert used <= labels, text
                case _:
                    pass

        promql.walk(promql.parse(query.expr), look)
        grouped = {
            label for found in re.findall(r"by \(([^)]*)\)", query.expr) for label in found.split(", ")
        }
        assert grouped - {""} <= labels | {"le"}, query.expr


def test_legends_use_labels_that_the_query_keeps(dashboard: Dashboard) -> None:
    for shown in dashboard["panels"]:
        for target in shown["targets"]:
            kept = set(re.findall(r"\w+", re.findall(r"by \(([^)]*)\)", target["expr"])[0]))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, shown["title"]


def test_every_histogram_asks_for_exemplars_and_nothing_else_does(dashboard: Dashboard) -> None:
    for shown in dashboard["panels"]:
        for target in shown["targets"]:
            assert target["exemplar"] == ("_bucket" in target["expr"]), shown["title"]


def test_marks_show_who_was_told_what_was_done_and_what_fires(dashboard: Dashboard) -> None:
    exprs = {query.panel: query.expr for query in annotation_queries(dashboard, variables={})}

    assert names.TRIAGE.name in exprs["Operator notified"]
    assert names.INTERVENTIONS.name in exprs["Interventions"]
    assert 'ALERTS{alertstate="firing"' in exprs["Firing alerts"]


@pytest.mark.parametrize("name", ["fleet", "agent"])
def test_the_lines_for_bad_steps_are_the_detectors_bands(name: str) -> None:
    bands = HealthSettings().bands

    drawn = panel(load(name), "Bad steps since the last accept")

    assert lines(drawn) == [bands.warning, bands.medium, bands.high, bands.critical]
    assert drawn["fieldConfig"]["defaults"]["custom"]["thresholdsStyle"]["mode"] != "off"


def test_the_lines_of_the_clocks_are_the_detectors_thresholds() -> None:
    settings, board = HealthSettings(), load("agent")
    check = settings.health_check

    assert lines(panel(board, "Since it last did anything")) == [
        settings.stall.idle_seconds,
        settings.stall.tool_seconds,
    ]
    assert lines(panel(board, "Since its last heartbeat")) == [settings.heartbeat.timeout_seconds]
    assert lines(panel(board, "Since its last checkpoint")) == [
        check.checkpoint_degraded_seconds,
        check.checkpoint_stale_threshold_seconds,
    ]


def test_every_state_and_severity_of_the_health_layer_has_its_colour() -> None:
    assert set(STATES) == set(HealthState)
    assert list(SEVERITIES) == list(Severity)


def test_a_state_that_needs_somebody_sorts_above_one_that_does_not() -> None:
    order = sorted(STATES, key=lambda state: STATES[state][0], reverse=True)

    assert order == ["failing", "stuck", "degraded", "healthy", "terminated"]
