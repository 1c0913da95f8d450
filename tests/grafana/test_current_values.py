"""
Large numbers and tables show current values: ended series are not shown, and missing data is never green.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from queenright.instrumentation import names
from tests.grafana.committed_dashboards import NAMES, Dashboard, Panel, list_panels, load
from tests.programs import run
from tools.dashboards.queries import queries

CURRENT_TYPES = ("stat", "bargauge", "table")
SCRAPE_LABELS = {"job": "queenright", "instance": "127.0.0.1:8420"}
DOWNTIME_MINUTES = 12
"""The minute at which the service and every worker end; before that, everything is healthy."""


def list_current_value_panels(board: Dashboard) -> list[Panel]:
    return [panel for panel in list_panels(board) if panel["type"] in CURRENT_TYPES]


def list_stat_panels(board: Dashboard) -> list[Panel]:
    return [panel for panel in list_current_value_panels(board) if panel["type"] != "table"]


def is_green(panel: Panel) -> bool:
    """Return whether a number can have a green background."""
    overrides = [override["properties"] for override in panel["fieldConfig"]["overrides"]]
    own_steps = [
        override["value"]
        for properties in overrides
        for override in properties
        if override["id"] == "thresholds"
    ]
    steps = [
        step
        for config in (panel["fieldConfig"]["defaults"]["thresholds"], *own_steps)
        for step in config["steps"]
    ]
    return any(step["color"] == "green" for step in steps)


def test_current_value_is_an_instant_query(dashboard: Dashboard) -> None:
    assert list_current_value_panels(dashboard)
    for panel in list_panels(dashboard):
        for target in panel["targets"]:
            is_instant_and_range = (target.get("instant", False), target.get("range", False))
            assert is_instant_and_range == (
                (True, False) if panel["type"] in CURRENT_TYPES else (False, True)
            ), panel["title"]


def test_single_value_is_the_last_and_a_missing_one_is_no_data(dashboard: Dashboard) -> None:
    for panel in list_stat_panels(dashboard):
        reduce_options = panel["options"]["reduceOptions"]

        assert (reduce_options["calcs"], reduce_options["values"]) == (["lastNotNull"], False), panel["title"]
        assert panel["fieldConfig"]["defaults"]["noValue"] == "no data", panel["title"]


def test_number_over_the_shown_time_is_never_green(dashboard: Dashboard) -> None:
    for panel in list_stat_panels(dashboard):
        if any("$__range" in target["expr"] for target in panel["targets"]):
            assert not is_green(panel), panel["title"]


CURRENT_VALUE_QUERIES = [
    (name, panel["title"], query.expr)
    for name in NAMES
    for panel in list_stat_panels(load(name))
    for query in queries(
        {"panels": [panel], "templating": load(name)["templating"]}, variables={"__range": "5m"}
    )
]
TARGET_METRICS = ("Scrape targets",)
"""Prometheus' own series about a target, which report that it is down."""


def make_input_series() -> list[dict[str, str]]:
    """Return every series that a number reads, with its labels. The value is 1 until the process ends."""
    selectors = {
        selector_parts
        for _, _, expr in CURRENT_VALUE_QUERIES
        for selector_parts in re.findall(r"(queenright_\w+)(\{[^}]*\})", expr)
    }
    all_series: dict[str, str] = {}
    for name, matchers in selectors:
        metric = names.METRICS[name.removesuffix("_bucket")]
        labels = dict.fromkeys(metric.labels, "some") | SCRAPE_LABELS
        labels |= {
            label: value.split("|")[0] for label, value in re.findall(r'(\w+)=~?"([^".+]+)"', matchers)
        }
        labels |= {"le": "+Inf"} if name.endswith("_bucket") else {}
        selector = ", ".join(f'{label}="{value}"' for label, value in labels.items())
        all_series[f"{name}{{{selector}}}"] = f"1+1x{4 * DOWNTIME_MINUTES - 1} stale"
    all_series['up{job="queenright", instance="127.0.0.1:8420"}'] = f"1x{4 * DOWNTIME_MINUTES - 1} 0x40"
    return [{"series": name, "values": values} for name, values in all_series.items()]


def count_queries_without_data(folder: Path, minute: int, panel_queries: list[tuple[str, str, str]]) -> int:
    """Return how many of the queries have no data in a minute, according to promtool."""
    tests = [{"expr": expr, "eval_time": f"{minute}m", "exp_samples": []} for _, _, expr in panel_queries]
    file = folder / f"at_{minute}.json"  # JSON is YAML
    test_group: dict[str, Any] = {
        "interval": "15s",
        "input_series": make_input_series(),
        "promql_expr_test": tests,
    }
    file.write_text(json.dumps({"rule_files": [], "tests": [test_group]}))
    result = run("promtool", "test", "rules", str(file))
    answered_queries = re.findall(r"^\s*expr: ", result.stdout + result.stderr, re.MULTILINE)
    assert (result.returncode != 0) == bool(answered_queries), result.stderr
    return len(panel_queries) - len(answered_queries)


def test_unavailable_service_shows_no_current_value(tmp_path: Path) -> None:
    panel_queries = [
        panel_query
        for panel_query in CURRENT_VALUE_QUERIES
        if "5m]" not in panel_query[2] and panel_query[1] not in TARGET_METRICS
    ]

    assert len(panel_queries) >= 14
    assert count_queries_without_data(tmp_path, DOWNTIME_MINUTES - 1, panel_queries) == 0
    assert count_queries_without_data(tmp_path, DOWNTIME_MINUTES, panel_queries) == len(panel_queries)


def test_missing_outbox_is_not_zero(tmp_path: Path) -> None:
    [oldest_undelivered] = [
        panel_query for panel_query in CURRENT_VALUE_QUERIES if panel_query[1] == "Oldest undelivered"
    ]

    assert "vector(0)" in oldest_undelivered[2]
    assert count_queries_without_data(tmp_path, DOWNTIME_MINUTES + 1, [oldest_undelivered]) == 1


@pytest.mark.parametrize("label", ["severity", "status"])
def test_no_open_ticket_is_a_zero_while_the_service_answers(tmp_path: Path, label: str) -> None:
    [expr] = {
        panel_query[2]
        for panel_query in CURRENT_VALUE_QUERIES
        if f"sum by ({label}) (queenright_tickets_open" in panel_query[2]
    }
    value = "any" if label == "severity" else "open"
    agents = 'queenright_agents{job="queenright", instance="127.0.0.1:8420", state="healthy"}'
    test = {
        "interval": "15s",
        "input_series": [{"series": agents, "values": "3x20 stale"}],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": "4m",
                "exp_samples": [{"labels": f'{{{label}="{value}"}}', "value": 0}],
            },
            {"expr": expr, "eval_time": "6m", "exp_samples": []},
        ],
    }
    (tmp_path / "test.json").write_text(json.dumps({"rule_files": [], "tests": [test]}))

    assert run("promtool", "test", "rules", str(tmp_path / "test.json")).returncode == 0
