from __future__ import annotations

from typing import Any

import pytest

from tools.dashboards.queries import PanelQuery, UnknownVariableError, annotation_queries, queries


def make_board(*exprs: str, instant: bool = False) -> dict[str, Any]:
    targets = [{"expr": expr, "instant": instant} for expr in exprs]
    return {
        "panels": [{"title": "A panel", "targets": targets}],
        "templating": {"list": [{"name": "datasource"}, {"name": "job", "allValue": ".+"}]},
        "annotations": {"list": [{"name": "Built in"}, {"name": "Fires", "expr": 'ALERTS{job=~"$job"}'}]},
    }


def test_caller_variables_win_over_defaults() -> None:
    [query] = queries(make_board('up{job=~"$job"}'), variables={"job": "a|b"})

    assert query == PanelQuery("A panel", 'up{job=~"a|b"}')


def test_omitted_variable_means_all() -> None:
    [query] = queries(make_board('up{job=~"${job}"}'), variables={})

    assert query.expr == 'up{job=~".+"}'


@pytest.mark.parametrize(("variables", "window"), [({}, "1m"), ({"__rate_interval": "4s"}, "4s")])
def test_rate_interval_has_a_default(variables: dict[str, str], window: str) -> None:
    [query] = queries(make_board("rate(x_total[$__rate_interval])"), variables=variables)

    assert query.expr == f"rate(x_total[{window}])"


def test_variable_with_a_common_prefix_is_distinct() -> None:
    [query] = queries(make_board("$job_name"), variables={"job": "a", "job_name": "b"})

    assert query.expr == "b"


def test_undefined_variable_is_named_with_its_panel() -> None:
    with pytest.raises(UnknownVariableError, match=r"'A panel' uses \$tenant"):
        queries(make_board('up{tenant="$tenant"}'), variables={})


def test_panels_inside_a_row_are_read_too() -> None:
    inner_board = make_board("up")
    outer_board = {
        **inner_board,
        "panels": [{"title": "Row", "type": "row", "panels": inner_board["panels"]}],
    }

    assert [query.panel for query in queries(outer_board, variables={})] == ["A panel"]


def test_every_panel_target_is_listed_with_its_instant_flag() -> None:
    panel_queries = queries(make_board("a", "b", instant=True), variables={})

    assert [(query.expr, query.instant) for query in panel_queries] == [("a", True), ("b", True)]


def test_annotations_have_their_own_queries() -> None:
    assert annotation_queries(make_board(), variables={}) == [PanelQuery("Fires", 'ALERTS{job=~".+"}')]
