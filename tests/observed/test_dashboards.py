"""
Every query of every panel, annotation and variable has data after the story, and all metric names are known.
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
"""Longer than four scrapes at one per second."""

BAR: Final = 5
"""Seconds."""

CONSTANT_PANELS: Final = {
    "Checks without a verdict": "if its model fails, the judge's rules decide",
    "Dismissed": "the only dismissed ticket is the first, before two scrapes of decisions",
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


def variables(story: Story) -> dict[str, str]:
    """Return Grafana's variables when the dashboard shows the whole story."""
    return {"__rate_interval": WINDOW, "__range": f"{math.ceil(story.until - story.since)}s"}


def panel_values(story: Story, query: PanelQuery) -> list[float]:
    """Return every number that a panel would draw, without NaN and infinity."""
    if query.instant:
        found = [float(series["value"][1]) for series in story.query(query.expr)]
    else:
        found = [float(value) for series in story.range(query.expr) for _, value in series["values"]]
    return [value for value in found if math.isfinite(value)]


@pytest.fixture(params=NAMES)
def board(request: pytest.FixtureRequest) -> Dashboard:
    """Yield each committed dashboard."""
    return load(request.param)


def test_every_query_of_every_panel_has_data(story: Story, board: Dashboard) -> None:
    found = [
        query
        for query in queries(board, variables=variables(story))
        if not any(name in query.expr for name in CLUSTER_METRICS)
    ]

    empty = [f"{query.panel}: {query.expr}" for query in found if not panel_values(story, query)]

    assert empty == []


def test_values_moved_by_the_story_are_not_always_zero(story: Story, board: Dashboard) -> None:
    panel_queries = queries(board, variables=variables(story))

    still = {query.panel for query in panel_queries if not any(panel_values(story, query))}

    assert still - CONSTANT_PANELS.keys() == set()


def test_allowed_constant_panels_still_exist() -> None:
    titles = {panel["title"] for name in NAMES for panel in list_panels(load(name))}

    assert titles >= CONSTANT_PANELS.keys()


def test_bars_sum_to_the_events(story: Story, board: Dashboard) -> None:
    # Whole bars; the last one ends with the story.
    seconds = BAR * math.ceil((story.until - story.since) / BAR)
    story = replace(story, since=story.until - seconds)
    # A scrape longer than the bar, as in Grafana; otherwise increases between two bars would be in neither.
    filled = {"__rate_interval": f"{BAR + 1}s", "__interval_ms": f"{1000 * BAR}", "__range": f"{seconds}s"}
    bars = {"panels": [result for result in list_panels(board) if result.get("interval")]}
    panel_queries = queries({**board, **bars}, variables=filled)
    whole = queries({**board, **bars}, variables={**filled, "__rate_interval": filled["__range"]})
    scale = seconds / BAR

    for each, all_of_it in zip(panel_queries, whole, strict=True):
        found = {
            _labels(series): sum(float(value) for _, value in series["values"])
            for series in story.range(each.expr, step=BAR)
        }
        happened = {
            _labels(series): scale * float(series["value"][1]) for series in story.query(all_of_it.expr)
        }
        # Both are estimates at the ends of the range; with few scrapes per bar on a busy machine, series with
        # few events are inaccurate.
        result = sum(found.get(labels, 0) for labels in happened)
        assert result == pytest.approx(sum(happened.values()), rel=0.45, abs=0.5), each.panel


def _labels(series: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(series["metric"].items()))


def test_every_annotation_has_data(story: Story, board: Dashboard) -> None:
    found = annotation_queries(board, variables=variables(story))

    assert [query.panel for query in found if not panel_values(story, query)] == []


def test_all_metric_names_are_known(story: Story, board: Dashboard) -> None:
    known = set(story.prometheus.get("/label/__name__/values").json()["data"])
    texts = [query.expr for query in queries(board, variables=variables(story))]

    used = {name for text in texts for name in re.findall(r"[\w:]*queenright_[\w:]+|\bALERTS\b|\bup\b", text)}

    assert used
    assert used - CLUSTER_METRICS - known == set()


def test_exemplars_link_to_traces(story: Story, board: Dashboard) -> None:
    all_panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    wanted = {
        query.expr
        for panel, query in _with_panels(all_panels, queries(board, variables=variables(story)))
        if panel["exemplar"]
    }

    without = [expr for expr in wanted if not _traces(story, expr)]

    assert without == []


def _with_panels(shown: list[Dashboard], found: list[PanelQuery]) -> list[tuple[dict[str, Any], PanelQuery]]:
    targets = [target for panel in shown for target in panel["targets"]]
    return list(zip(targets, found, strict=True))


def _traces(story: Story, expr: str) -> list[str]:
    return [
        exemplar["labels"]["trace_id"]
        for series in story.exemplars(expr)
        for exemplar in series["exemplars"]
        if exemplar["labels"].get("trace_id")
    ]


def test_selected_agent_filters_the_panels(story: Story) -> None:
    found = queries(load("agent"), variables={**variables(story), "agent": "nobody"})

    assert len(found) >= 15
    assert [query.panel for query in found if panel_values(story, query)] == []


@pytest.mark.parametrize("name", ["job", "instance", "agent"])
def test_every_variable_offers_its_choices(story: Story, board: Dashboard, name: str) -> None:
    [variable] = [v for v in board["templating"]["list"] if v["name"] == name]
    match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
    assert match is not None

    selector = re.sub(r"\$\w+", ".+", match[1])
    offered = story.prometheus.get(f"/label/{match[2]}/values", params={"match[]": selector}).json()["data"]

    assert len(offered) >= {"job": 1, "instance": 2, "agent": 3}[name]


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


def test_event_that_never_happened_has_no_age(story: Story, board: Dashboard) -> None:
    ages = [query for query in queries(board, variables=variables(story)) if "time() -" in query.expr]

    for query in ages:
        assert all(value < 3600 for value in panel_values(story, query)), query.panel


def test_table_has_one_row_for_each_agent_or_breaker(story: Story) -> None:
    for name, title, label in (("fleet", "Agents", "agent"), ("breakers", "Breakers", "breaker")):
        found = [query for query in queries(load(name), variables=variables(story)) if query.panel == title]

        for query in found:
            rows = [series["metric"][label] for series in story.query(query.expr)]
            assert len(set(rows)) == len(rows), query.expr


def test_share_without_events_is_undefined(story: Story) -> None:
    expr = share_of("tool", names.WORKER_TOOL_CALLS, 'outcome="no such outcome"', window=WINDOW)
    for variable in ("$job", "$instance", "$agent"):
        expr = expr.replace(variable, ".+")

    assert set(panel_values(story, PanelQuery("share", expr))) == {0.0}
