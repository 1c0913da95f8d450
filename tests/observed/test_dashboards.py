"""
After the story, every query of every panel, annotation and variable has data, and all metric names exist.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any, Final

import pytest

from queenright.health.detection.health_state import HealthState
from queenright.instrumentation import names
from tests.grafana.committed_dashboards import NAMES, Dashboard, list_panels, load
from tests.observed.test_story import CLUSTER_METRICS
from tools.dashboards.promql import share_of
from tools.dashboards.queries import PanelQuery, annotation_queries, queries
from tools.dashboards.states import STATES, state_rank
from tools.story.recording import Story

WINDOW = "10s"
"""The range of rates; it contains more than four scrapes, which are a second apart."""

BAR_SECONDS: Final = 5
"""The width of a bar in the charts."""

CONSTANT_PANELS: Final = {
    "Checks without a verdict": "if its model fails, the judge's rules decide",
    "Dismissed": "the only dismissed ticket is the first, before decisions have been scraped twice",
    "Active recoveries": "at the end all have ended",
    "Slow interventions against the objective": "interventions start within seconds",
    "Undelivered": "at the end everything is delivered",
    "Oldest undelivered": "at the end everything is delivered",
    "Running processes": "the service is one process, not a cluster",
    "Owners": "the service is one process, not a cluster",
    "NATS": "the service is one process, not a cluster",
    "Telemetry to store": "the service is one process, not a cluster",
    "Telemetry dropped": "it is dropped before its first scrape",
    "Series left out": "there are a dozen agents, and the limit is hundreds",
    "Clocks ahead of Prometheus": "everything runs on one machine",
}
"""Panels that stay at 0 in the story, with the reason."""


def make_variables(story: Story) -> dict[str, str]:
    """Return the values of Grafana's variables for a dashboard that shows the whole story."""
    return {"__rate_interval": WINDOW, "__range": f"{math.ceil(story.until - story.since)}s"}


def list_panel_values(story: Story, query: PanelQuery) -> list[float]:
    """Return every number that a panel would draw, without NaN and infinity."""
    if query.instant:
        values = [float(series["value"][1]) for series in story.query(query.expr)]
    else:
        values = [float(value) for series in story.range(query.expr) for _, value in series["values"]]
    return [value for value in values if math.isfinite(value)]


@pytest.fixture(params=NAMES)
def dashboard(request: pytest.FixtureRequest) -> Dashboard:
    """Return each committed dashboard."""
    return load(request.param)


def test_every_query_of_every_panel_has_data(story: Story, dashboard: Dashboard) -> None:
    panel_queries = [
        query
        for query in queries(dashboard, variables=make_variables(story))
        if not any(name in query.expr for name in CLUSTER_METRICS)
    ]

    empty = [f"{query.panel}: {query.expr}" for query in panel_queries if not list_panel_values(story, query)]

    assert empty == []


def test_values_moved_by_the_story_are_not_always_zero(story: Story, dashboard: Dashboard) -> None:
    panel_queries = queries(dashboard, variables=make_variables(story))

    constant_panels = {query.panel for query in panel_queries if not any(list_panel_values(story, query))}

    assert constant_panels - CONSTANT_PANELS.keys() == set()


def test_allowed_constant_panels_still_exist() -> None:
    titles = {panel["title"] for name in NAMES for panel in list_panels(load(name))}

    assert titles >= CONSTANT_PANELS.keys()


def test_sum_of_bars_equals_the_number_of_events(story: Story, dashboard: Dashboard) -> None:
    # Whole bars; the last one ends with the story.
    seconds = BAR_SECONDS * math.ceil((story.until - story.since) / BAR_SECONDS)
    story = replace(story, since=story.until - seconds)
    # As in Grafana, the range is a scrape longer than the bar; otherwise increases between bars are lost.
    bar_variables = {
        "__rate_interval": f"{BAR_SECONDS + 1}s",
        "__interval_ms": f"{1000 * BAR_SECONDS}",
        "__range": f"{seconds}s",
    }
    bars = {"panels": [bar_total for bar_total in list_panels(dashboard) if bar_total.get("interval")]}
    panel_queries = queries({**dashboard, **bars}, variables=bar_variables)
    total_queries = queries(
        {**dashboard, **bars}, variables={**bar_variables, "__rate_interval": bar_variables["__range"]}
    )
    scale = seconds / BAR_SECONDS

    for bar_query, total_query in zip(panel_queries, total_queries, strict=True):
        sums = {
            _read_labels(series): sum(float(value) for _, value in series["values"])
            for series in story.range(bar_query.expr, step=BAR_SECONDS)
        }
        totals = {
            _read_labels(series): scale * float(series["value"][1])
            for series in story.query(total_query.expr)
        }
        # Both are estimates at the ends of the range; with few scrapes per bar on a busy machine, series with
        # few events are inaccurate.
        bar_total = sum(sums.get(labels, 0) for labels in totals)
        assert bar_total == pytest.approx(sum(totals.values()), rel=0.45, abs=0.5), bar_query.panel


def _read_labels(series: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(series["metric"].items()))


def test_every_annotation_has_data(story: Story, dashboard: Dashboard) -> None:
    annotations = annotation_queries(dashboard, variables=make_variables(story))

    assert [query.panel for query in annotations if not list_panel_values(story, query)] == []


def test_all_metric_names_are_known(story: Story, dashboard: Dashboard) -> None:
    metric_names = set(story.prometheus.get("/label/__name__/values").json()["data"])
    texts = [query.expr for query in queries(dashboard, variables=make_variables(story))]

    used = {name for text in texts for name in re.findall(r"[\w:]*queenright_[\w:]+|\bALERTS\b|\bup\b", text)}

    assert used
    assert used - CLUSTER_METRICS - metric_names == set()


def test_exemplars_link_to_traces(story: Story, dashboard: Dashboard) -> None:
    all_panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    expressions = {
        query.expr
        for panel, query in _pair_with_targets(
            all_panels, queries(dashboard, variables=make_variables(story))
        )
        if panel["exemplar"]
    }

    missing = [expr for expr in expressions if not _list_trace_ids(story, expr)]

    assert missing == []


def _pair_with_targets(
    panels: list[Dashboard], panel_queries: list[PanelQuery]
) -> list[tuple[dict[str, Any], PanelQuery]]:
    targets = [target for panel in panels for target in panel["targets"]]
    return list(zip(targets, panel_queries, strict=True))


def _list_trace_ids(story: Story, expr: str) -> list[str]:
    return [
        exemplar["labels"]["trace_id"]
        for series in story.exemplars(expr)
        for exemplar in series["exemplars"]
        if exemplar["labels"].get("trace_id")
    ]


def test_selected_agent_filters_the_panels(story: Story) -> None:
    panel_queries = queries(load("agent"), variables={**make_variables(story), "agent": "nobody"})

    assert len(panel_queries) >= 15
    assert [query.panel for query in panel_queries if list_panel_values(story, query)] == []


@pytest.mark.parametrize("name", ["job", "instance", "agent"])
def test_every_variable_offers_its_choices(story: Story, dashboard: Dashboard, name: str) -> None:
    [variable] = [candidate for candidate in dashboard["templating"]["list"] if candidate["name"] == name]
    match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
    assert match is not None

    selector = re.sub(r"\$\w+", ".+", match[1])
    choices = story.prometheus.get(f"/label/{match[2]}/values", params={"match[]": selector}).json()["data"]

    assert len(choices) >= {"job": 1, "instance": 2, "agent": 3}[name]


def test_worst_state_of_an_agent_is_its_rank(story: Story) -> None:
    [panel_queries] = queries(
        {
            "panels": [{"title": "state", "targets": [{"expr": state_rank()}]}],
            "templating": load("fleet")["templating"],
        },
        variables={},
    )

    ranks = {
        series["metric"]["agent"]: float(series["value"][1]) for series in story.query(panel_queries.expr)
    }
    states = {
        series["metric"]["agent"]: series["metric"]["state"]
        for series in story.query("queenright_agent_state == 1")
    }

    assert len(ranks) >= 3
    assert ranks == {agent: STATES[HealthState(state)][0] for agent, state in states.items()}


def test_event_that_never_happened_has_no_age(story: Story, dashboard: Dashboard) -> None:
    ages = [
        query for query in queries(dashboard, variables=make_variables(story)) if "time() -" in query.expr
    ]

    for query in ages:
        assert all(value < 3600 for value in list_panel_values(story, query)), query.panel


def test_table_has_one_row_for_each_agent_or_breaker(story: Story) -> None:
    for name, title, label in (("fleet", "Agents", "agent"), ("breakers", "Breakers", "breaker")):
        panel_queries = [
            query for query in queries(load(name), variables=make_variables(story)) if query.panel == title
        ]

        for query in panel_queries:
            rows = [series["metric"][label] for series in story.query(query.expr)]
            assert len(set(rows)) == len(rows), query.expr


def test_share_without_events_is_undefined(story: Story) -> None:
    expr = share_of("tool", names.WORKER_TOOL_CALLS, 'outcome="no such outcome"', window=WINDOW)
    for variable in ("$job", "$instance", "$agent"):
        expr = expr.replace(variable, ".+")

    assert set(list_panel_values(story, PanelQuery("share", expr))) == {0.0}
