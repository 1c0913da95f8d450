"""Table panels: one row per agent or breaker with one column per query, or one row per series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from grafana_foundation_sdk.builders import common, table
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from queenright.grafana.export import Lines
from tools.dashboards.panels import (
    Query,
    colour_scheme,
    set_common_options,
    target,
    thresholds,
    value_map,
    with_refs,
)

ACTION: Final = "action"
"""The label added by ``with_action``: the text of a clickable cell."""


@dataclass(frozen=True, slots=True)
class Column:
    """
    A column of a table; its query returns one value per row.

    ``words`` are value mappings (value, text, colour); ``links`` are the data links of its cells.
    """

    title: str
    expr: str
    unit: str = "none"
    lines: Lines = ()
    words: Sequence[tuple[int, str, str]] = ()
    links: Sequence[Mapping[str, object]] = ()


def with_action(expr: str, words: str, label: str) -> str:
    """Return ``expr`` with an extra label that holds ``words``, for a column of clickable text."""
    return f'label_replace({expr}, "{ACTION}", "{words}", "{label}", ".+")'


def rows_by(
    label: str,
    title: str,
    description: str,
    *columns: Column,
    links: Sequence[Mapping[str, object]],
    action: Column | None = None,
    size: tuple[int, int] = (24, 9),
) -> table.Panel:
    """
    Return a table with one row per value of ``label``, sorted by the first column in descending order.

    Args:
        label: The label of the rows, shown in the first column.
        columns: The other columns; at most seven.
        links: Data links of the first column.
        action: A last column with clickable text; its query comes from ``with_action``.
        size: Width (of 24) and height.
    """
    panel = set_common_options(table.Panel(), title, description, "none", size)
    panel.color_scheme(colour_scheme(models.FieldColorModeId.THRESHOLDS))
    all_columns = [*columns, action] if action else list(columns)
    refs = [ref for _, ref in with_refs([Query(column.expr) for column in all_columns])]
    panel.targets(
        [
            target(Query(column.expr, ""), ref).instant().format(PromQueryFormat.TABLE)
            for column, ref in zip(all_columns, refs, strict=True)
        ]
    )
    panel.with_transformation(
        models.DataTransformerConfig("joinByField", options={"byField": label, "mode": "outer"})
    )
    times = ("Time", *(f"Time {number}" for number in range(1, len(all_columns) + 1)))
    hidden_columns = [*times, f"Value #{refs[-1]}"] if action else [*times]
    values = {f"Value #{ref}": column.title for column, ref in zip(columns, refs, strict=False)}
    titles = {label: label.capitalize()} | values | ({ACTION: action.title} if action else {})
    panel.with_transformation(_organize(titles, hidden_columns))
    panel.override_by_name(label.capitalize(), [models.DynamicConfigValue("links", list(links))])
    for column in all_columns:
        panel.override_by_name(column.title, _cell_properties(column))
    return panel.sort_by([common.TableSortByFieldState().display_name(columns[0].title).desc(True)])


def series(
    title: str,
    description: str,
    expr: str,
    labels: Mapping[str, str],
    *,
    value: Column | None = None,
    links: Mapping[str, Sequence[Mapping[str, object]]] | None = None,
    size: tuple[int, int] = (8, 6),
) -> table.Panel:
    """
    Return a table with one row per series: its labels, then its value, in descending order.

    Args:
        labels: Labels to show and their headings, in order.
        value: Heading, unit and colours of the value column (its ``expr`` is not used); None hides it.
        links: Data links by label.
        size: Width (of 24) and height.
    """
    panel = set_common_options(table.Panel(), title, description, "none" if value else "string", size)
    panel.color_scheme(colour_scheme(models.FieldColorModeId.THRESHOLDS))
    panel.targets([target(Query(expr, ""), "A").instant().format(PromQueryFormat.TABLE)])
    titles = dict(labels) | ({"Value": value.title} if value else {})
    panel.with_transformation(_organize(titles, ["Time"] if value else ["Time", "Value"]))
    for label, label_links in (links or {}).items():
        panel.override_by_name(labels[label], [models.DynamicConfigValue("links", list(label_links))])
    if value is None:
        return panel
    panel.override_by_name(value.title, _cell_properties(value))
    return panel.sort_by([common.TableSortByFieldState().display_name(value.title).desc(True)])


def _organize(titles: Mapping[str, str], hidden_columns: Sequence[str]) -> models.DataTransformerConfig:
    options = {
        "excludeByName": dict.fromkeys(hidden_columns, True),
        "indexByName": {name: index for index, name in enumerate(titles)},
        "renameByName": dict(titles),
    }
    return models.DataTransformerConfig("organize", options=options)


def _cell_properties(column: Column) -> list[models.DynamicConfigValue]:
    properties = [models.DynamicConfigValue("unit", column.unit)]
    if column.unit == "short":  # an increase is extrapolated between scrapes: 7.16 for a whole number
        properties.append(models.DynamicConfigValue("decimals", 0))
    if column.words:
        properties.append(models.DynamicConfigValue("mappings", [value_map(column.words)]))
    if column.lines:
        properties.append(models.DynamicConfigValue("thresholds", thresholds(column.lines).build()))
    if column.words or column.lines:
        properties.append(models.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
    if column.links:
        properties.append(models.DynamicConfigValue("links", list(column.links)))
    return properties
