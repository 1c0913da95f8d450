"""Each number has the unit of its query."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.grafana.committed_dashboards import NAMES, Panel, get_column_properties, list_panels, load

TOKENS = "suffix:tokens/s"


def infer_unit(expr: str) -> str:
    """Return the unit of a query's result, from its metrics and functions."""
    dollars, shares = "_dollars_total" in expr, re.search(r"\) / \(|:ratio|_spent", expr)
    match expr:
        case _ if "time()" in expr or "histogram_quantile" in expr or re.search(r"_seconds:p\d", expr):
            return "s"
        case _ if dollars:
            return "currencyUSD"
        case _ if shares:
            return "percentunit"
        case _ if "$__interval_ms" in expr or "increase(" in expr:
            return "short"
        case _ if "rate(" in expr:
            return TOKENS if "tokens_total" in expr else "ops"
        case _ if "ALERTS" in expr or "worker_info" in expr:
            return "string"
        case _:
            return "none"


def list_units(panel: Panel) -> Iterator[tuple[str, str]]:
    """Return each query of a panel, with the unit in which it is displayed."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    titles = panel["transformations"][-1]["options"]["renameByName"] if panel["type"] == "table" else {}
    for target in panel["targets"]:
        title = titles.get(f"Value #{target['refId']}") or titles.get("Value")
        yield target["expr"], get_column_properties(panel, title).get("unit", unit) if title else unit


@pytest.mark.parametrize("name", NAMES)
def test_unit_is_that_of_the_query(name: str) -> None:
    for panel in list_panels(load(name)):
        for expr, unit in list_units(panel):
            is_yes_or_no = unit == "bool_yes_no" and "queenright_worker_waiting" in expr
            assert is_yes_or_no or unit == infer_unit(expr), f"{panel['title']}: {expr}"


def test_heat_maps_show_durations() -> None:
    heat_maps = [
        heat_map for name in NAMES for heat_map in list_panels(load(name)) if heat_map["type"] == "heatmap"
    ]

    assert len(heat_maps) >= 4
    for heat_map in heat_maps:
        assert heat_map["options"]["yAxis"]["unit"] == "s"
        assert "_seconds_bucket" in heat_map["targets"][0]["expr"]


@pytest.mark.parametrize(
    "unit", ["s", "percentunit", TOKENS, "currencyUSD", "ops", "short", "none", "string"]
)
def test_every_unit_is_used(unit: str) -> None:
    assert unit in {
        unit for name in NAMES for panel in list_panels(load(name)) for _, unit in list_units(panel)
    }
