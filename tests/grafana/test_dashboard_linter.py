"""
The rules of Grafana's dashboard linter, applied to the committed JSON, each with a test that it catches
faults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import promql_parser as promql
import pytest

from tests.grafana.committed_dashboards import NAMES, list_panels, load
from tools.dashboards.queries import PanelQuery, annotation_queries, queries

Dashboard = dict[str, Any]

WINDOW, SHOWN = timedelta(seconds=61), timedelta(seconds=3601)
VARIABLES = {
    "job": "JOB",
    "instance": "INSTANCE",
    "agent": "AGENT",
    "__rate_interval": "61s",
    "__interval_ms": "60000",
    "__range": "3601s",
}
# known to Grafana
UNITS = {"none", "short", "s", "ops", "suffix:tokens/s", "percentunit", "string", "currencyUSD"}
DATASOURCE_VARIABLE = "${datasource}"


def get_variable(board: Dashboard, name: str) -> dict[str, Any]:
    variable: dict[str, Any] = next((v for v in board["templating"]["list"] if v["name"] == name), {})
    return variable


def list_selector_chains(expr: promql.Expr) -> Iterator[list[Any]]:
    """Return every selector of an expression, last in the chain of its enclosing nodes."""
    path: list[Any] = []
    chains: list[list[Any]] = []

    def enter(node: promql.Expr) -> None:
        path.append(node)
        if isinstance(node, promql.VectorSelector):
            chains.append(list(path))

    def leave(node: promql.Expr) -> None:
        path.pop()

    promql.walk(expr, enter, leave)
    return iter(chains)


def list_selectors(board: Dashboard) -> Iterator[tuple[PanelQuery, list[Any], promql.VectorSelector]]:
    for query in queries(board, variables=VARIABLES):
        for chain in list_selector_chains(promql.parse(query.expr)):
            yield query, chain[:-1], chain[-1]


def template_datasource(board: Dashboard) -> Iterator[str]:
    variable = get_variable(board, "datasource")
    if (variable.get("type"), variable.get("query"), variable.get("label")) != (
        "datasource",
        "prometheus",
        "Data source",
    ):
        yield f"datasource: {variable}"


def make_template_rule(name: str) -> Callable[[Dashboard], Iterator[str]]:
    def rule(board: Dashboard) -> Iterator[str]:
        variable = get_variable(board, name)
        expected = {
            "type": "query",
            "multi": True,
            "includeAll": True,
            "allValue": ".+",
            "label": name.title(),
        }
        if {key: variable.get(key) for key in expected} != expected or variable["datasource"][
            "uid"
        ] != DATASOURCE_VARIABLE:
            yield f"{name}: {variable}"

    return rule


def template_label_promql(board: Dashboard) -> Iterator[str]:
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            if match is None:
                yield f"{variable['name']}: {variable['query']}"
            else:
                promql.parse(re.sub(r"\$\w+", "x", match[1]))


def template_on_time_change_reload(board: Dashboard) -> Iterator[str]:
    yield from (v["name"] for v in board["templating"]["list"] if v["type"] == "query" and v["refresh"] != 2)


def panel_datasource(board: Dashboard) -> Iterator[str]:
    for panel in list_panels(board):
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        if any(source != {"type": "prometheus", "uid": DATASOURCE_VARIABLE} for source in sources):
            yield f"{panel['title']}: {sources}"


def panel_title_description(board: Dashboard) -> Iterator[str]:
    yield from (
        str(panel["id"]) for panel in list_panels(board) if not panel["title"] or not panel["description"]
    )


def panel_units(board: Dashboard) -> Iterator[str]:
    for panel in list_panels(board):
        if panel["fieldConfig"]["defaults"].get("unit") not in UNITS:
            yield panel["title"]


def panel_no_targets(board: Dashboard) -> Iterator[str]:
    yield from (panel["title"] for panel in list_panels(board) if not panel["targets"])


def target_promql(board: Dashboard) -> Iterator[str]:
    for query in [*queries(board, variables=VARIABLES), *annotation_queries(board, variables=VARIABLES)]:
        try:
            promql.parse(query.expr)
        except ValueError as error:
            yield f"{query.panel}: {error}"


def target_rate_interval(board: Dashboard) -> Iterator[str]:
    for query, chain, _ in list_selectors(board):
        # An instant number covers the whole displayed time range.
        allowed_windows = {WINDOW, SHOWN} if query.instant else {WINDOW}
        if isinstance(chain[-1], promql.MatrixSelector) and chain[-1].range not in allowed_windows:
            yield query.panel


def has_no_target_labels(name: str) -> bool:
    """Return whether a series has no job and instance label: alerts, and recordings over all targets."""
    return name == "ALERTS" or name.startswith("cluster:")


def target_scope(label: str) -> Callable[[Dashboard], Iterator[str]]:
    def rule(board: Dashboard) -> Iterator[str]:
        expected_matcher = (promql.MatchOp.Re, label, VARIABLES[label])
        for query, _, selector in list_selectors(board):
            if has_no_target_labels(selector.name or ""):
                continue
            if expected_matcher not in [
                (matcher.op, matcher.name, matcher.value) for matcher in selector.matchers.matchers
            ]:
                yield f"{query.panel}: {selector}"

    return rule


def target_counter_agg(board: Dashboard) -> Iterator[str]:
    for query, chain, selector in list_selectors(board):
        if not (selector.name or "").endswith(("_total", "_bucket", "_count")):
            continue
        match chain:
            case [*_, promql.Call() as call, promql.MatrixSelector()] if call.func.name in {
                "rate",
                "increase",
            }:
                pass
            case _:
                yield f"{query.panel}: {selector}"


def target_sum_by(board: Dashboard) -> Iterator[str]:
    for query, chain, selector in list_selectors(board):
        aggregations = [
            node for node in chain if isinstance(node, promql.AggregateExpr) and node.param is None
        ]
        if not aggregations or any(node.modifier is None for node in aggregations):
            yield f"{query.panel}: {selector}"


def uneditable_dashboard(board: Dashboard) -> Iterator[str]:
    if board["editable"]:
        yield "editable"


RULES: dict[str, Callable[[Dashboard], Iterator[str]]] = {
    "template-datasource": template_datasource,
    "template-job": make_template_rule("job"),
    "template-instance": make_template_rule("instance"),
    "template-agent": make_template_rule("agent"),
    "template-label-promql": template_label_promql,
    "template-on-time-change-reload": template_on_time_change_reload,
    "panel-datasource": panel_datasource,
    "panel-title-description": panel_title_description,
    "panel-units": panel_units,
    "panel-no-targets": panel_no_targets,
    "target-promql": target_promql,
    "target-rate-interval": target_rate_interval,
    "target-job": target_scope("job"),
    "target-instance": target_scope("instance"),
    "target-counter-agg": target_counter_agg,
    "target-sum-by": target_sum_by,
    "uneditable-dashboard": uneditable_dashboard,
}

AGENTS_SELECTOR = 'queenright_agents{job=~"$job", instance=~"$instance"}'
TRIAGE_SELECTOR = 'queenright_triage_total{job=~"$job", instance=~"$instance"}'


def put_value(*path: Any, value: Any) -> Callable[[Dashboard], None]:
    """Return a change that breaks a dashboard: it puts ``value`` at ``path``."""

    def change(board: Dashboard) -> None:
        node: Any = board
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value

    return change


def put_expr(value: str) -> Callable[[Dashboard], None]:
    return put_value("panels", 1, "targets", 0, "expr", value=value)


BREAKAGES: dict[str, Callable[[Dashboard], None]] = {
    "template-datasource": put_value("templating", "list", 0, "query", value="loki"),
    "template-job": put_value("templating", "list", 1, "allValue", value=".*"),
    "template-instance": put_value("templating", "list", 2, "multi", value=False),
    "template-agent": put_value("templating", "list", 3, "name", value="worker"),
    "template-label-promql": put_value("templating", "list", 1, "query", value="label_names(job)"),
    "template-on-time-change-reload": put_value("templating", "list", 1, "refresh", value=1),
    "panel-datasource": put_value("panels", 1, "datasource", "uid", value="abc123"),
    "panel-title-description": put_value("panels", 1, "description", value=""),
    "panel-units": put_value("panels", 1, "fieldConfig", "defaults", "unit", value="parsecs"),
    "panel-no-targets": put_value("panels", 1, "targets", value=[]),
    "target-promql": put_expr("sum by (state) (queenright_agents{)"),
    "target-rate-interval": put_expr(f"sum by (decision) (rate({TRIAGE_SELECTOR}[5m]))"),
    "target-job": put_expr('sum by (state) (queenright_agents{job="a", instance=~"$instance"})'),
    "target-instance": put_expr('sum by (state) (queenright_agents{job=~"$job"})'),
    "target-counter-agg": put_expr(f"sum by (decision) ({TRIAGE_SELECTOR})"),
    "target-sum-by": put_expr(f"sum({AGENTS_SELECTOR})"),
    "uneditable-dashboard": put_value("editable", value=True),
}


def test_dashboard_follows_the_rules(dashboard: Dashboard) -> None:
    assert {name: violations for name, rule in RULES.items() if (violations := list(rule(dashboard)))} == {}


@pytest.mark.parametrize("rule", RULES)
def test_rule_detects_a_violation(rule: str) -> None:
    for name in NAMES:
        board = load(name)
        BREAKAGES[rule](board)

        assert list(RULES[rule](board)) != [], name
