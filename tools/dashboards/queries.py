"""Extract the queries of a generated dashboard, with Grafana's variables filled in for Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from queenright.instrumentation.errors import QueenrightError

_VARIABLE = re.compile(r"\$\{(\w+)(?::\w+)?\}|\$(\w+)")

_BUILT_IN = {"__rate_interval": "1m", "__interval": "15s", "__interval_ms": "15000", "__range": "1h"}


class UnknownVariableError(QueenrightError):
    """Raised for a query with an undefined variable."""

    def __init__(self, name: str, panel: str) -> None:
        super().__init__(f"Panel {panel!r} uses ${name}, which is not defined; add it to the variables.")
        self.name = name
        self.panel = panel


@dataclass(frozen=True, slots=True)
class PanelQuery:
    """A runnable query of a panel. ``instant``: the panel shows only the latest value."""

    panel: str
    expr: str
    instant: bool = False


def queries(dashboard_json: Mapping[str, Any], *, variables: Mapping[str, str]) -> list[PanelQuery]:
    """
    Return every query of every panel, in display order, including panels inside rows.

    Args:
        dashboard_json: A parsed dashboard, as in ``grafana/dashboards/*.json``.
        variables: Values by name, without ``$``. Other variables have the dashboard's "All" value, and
            Grafana's built-in variables fixed values.

    Raises:
        UnknownVariableError: A query uses a variable without a value.
    """
    values = _resolve_variables(dashboard_json, variables)
    return [
        PanelQuery(
            panel["title"],
            _fill_variables(target["expr"], values, panel["title"]),
            target.get("instant", False),
        )
        for panel in _iterate_panels(dashboard_json)
        for target in panel.get("targets", [])
        if "expr" in target
    ]


def annotation_queries(
    dashboard_json: Mapping[str, Any], *, variables: Mapping[str, str]
) -> list[PanelQuery]:
    """
    Return the queries of the dashboard's annotations; ``panel`` is the annotation's name.

    Raises:
        UnknownVariableError: A query uses a variable without a value.
    """
    values = _resolve_variables(dashboard_json, variables)
    return [
        PanelQuery(annotation["name"], _fill_variables(annotation["expr"], values, annotation["name"]))
        for annotation in dashboard_json.get("annotations", {}).get("list", [])
        if "expr" in annotation
    ]


def _iterate_panels(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for panel in node.get("panels", []):
        yield panel
        yield from _iterate_panels(panel)


def _resolve_variables(dashboard_json: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, str]:
    declared = dashboard_json.get("templating", {}).get("list", [])
    defaults = {variable["name"]: variable["allValue"] for variable in declared if variable.get("allValue")}
    return {**_BUILT_IN, **defaults, **variables}


def _fill_variables(expr: str, values: Mapping[str, str], panel: str) -> str:
    def replace_variable(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in values:
            raise UnknownVariableError(name, panel)
        return values[name]

    return _VARIABLE.sub(replace_variable, expr)
