"""The kinds of panel the dashboards are made of, each with a title, a description, a unit and its queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from grafana_foundation_sdk.builders import (
    common,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from queenright.grafana.states import GREEN, STATES, Lines

DATASOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")

AGENT_UID: Final = "queenright-agent"
"""Where a click on an agent leads."""

AnyPanel = timeseries.Panel | stat.Panel | statetimeline.Panel | table.Panel | heatmap.Panel
_P = TypeVar("_P", timeseries.Panel, stat.Panel, statetimeline.Panel, table.Panel, heatmap.Panel)


@dataclass(frozen=True, slots=True)
class Query:
    """One line of PromQL and its legend; ``exemplars`` asks for the traces behind a histogram."""

    expr: str
    legend: str = "__auto"
    exemplars: bool = False


def time_series(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    size: tuple[int, int] = (8, 8),
    lines: Lines = (),
    stacked: bool = False,
    colours: Iterable[tuple[str, str]] = (),
) -> timeseries.Panel:
    """Return values over time; ``lines`` are thresholds, ``colours`` fix the colour of a series."""
    panel = _dress(timeseries.Panel(), title, description, unit, size)
    panel.min(0).line_width(1).fill_opacity(80 if stacked else 10).span_nulls(False)
    panel.show_points(common_models.VisibilityMode.AUTO).color_scheme(
        _coloured(models.FieldColorModeId.PALETTE_CLASSIC_BY_NAME)
    )
    panel.tooltip(
        common.VizTooltipOptions()
        .mode(common_models.TooltipDisplayMode.MULTI)
        .sort(common_models.SortOrder.DESCENDING)
    )
    panel.legend(
        common.VizLegendOptions()
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs([])
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL).group("A"))
    if lines:
        panel.thresholds(_thresholds(lines))
        panel.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED)
        )
    for name, colour in colours:
        panel.override_by_name(name, [_fixed(colour)])
    return panel.targets([_target(query, ref) for query, ref in _named(queries)])


def counts(title: str, description: str, *queries: Query, size: tuple[int, int] = (8, 8)) -> timeseries.Panel:
    """Return how often something rare happened, as stacked bars of at least a minute."""
    panel = time_series(title, description, "short", *queries, size=size, stacked=True)
    return panel.interval("1m").draw_style(common_models.GraphDrawStyle.BARS)


def numbers(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    size: tuple[int, int] = (8, 5),
    lines: Lines = (),
    colours: Iterable[tuple[str, str]] = (),
) -> stat.Panel:
    """Return latest values, large; a series named in ``colours`` takes its colour from 1 on."""
    panel = _dress(stat.Panel(), title, description, unit, size)
    panel.color_mode(common_models.BigValueColorMode.BACKGROUND_SOLID)
    panel.graph_mode(common_models.BigValueGraphMode.NONE)
    panel.text_mode(common_models.BigValueTextMode.VALUE_AND_NAME)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False).fields(""))
    panel.thresholds(_thresholds(lines)).no_value("0" if unit == "none" else "no data")
    panel.color_scheme(_coloured(models.FieldColorModeId.THRESHOLDS))
    for name, colour in colours:
        steps = [{"color": "transparent", "value": None}, {"color": colour, "value": 1}]
        thresholds = {"mode": "absolute", "steps": steps}
        panel.override_by_name(name, [models.DynamicConfigValue("thresholds", thresholds)])
    return panel.targets([_target(query, ref) for query, ref in _named(queries)])


def state_history(
    title: str,
    description: str,
    query: Query,
    *,
    words: Iterable[tuple[int, str, str]],
    size: tuple[int, int] = (24, 6),
) -> statetimeline.Panel:
    """Return which state each series was in; ``words`` gives value, word and colour."""
    panel = _dress(statetimeline.Panel(), title, description, "none", size)
    panel.mappings([_words(words)]).show_value(common_models.VisibilityMode.AUTO).row_height(0.85)
    panel.merge_values(True).fill_opacity(75).line_width(0)
    panel.color_scheme(_coloured(models.FieldColorModeId.THRESHOLDS))
    return panel.targets([_target(query, "A")])


def heat_map(
    title: str, description: str, unit: str, query: Query, *, size: tuple[int, int] = (8, 8)
) -> heatmap.Panel:
    """Return the buckets of a histogram over time, as colour."""
    panel = _dress(heatmap.Panel(), title, description, "short", size).calculate(False)
    panel.y_axis(heatmap.YAxisConfig().unit(unit))
    panel.color(heatmap.HeatmapColorOptions().mode(heatmap_models.HeatmapColorMode.SCHEME).scheme("Oranges"))
    return panel.targets([_target(query, "A").format(PromQueryFormat.HEATMAP)])


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its query gives one value an agent."""

    title: str
    expr: str
    unit: str
    lines: Lines = ()
    states: bool = False


def agent_table(
    title: str, description: str, *columns: Column, size: tuple[int, int] = (16, 9)
) -> table.Panel:
    """Return one row an agent, highest first column first; the name links to the agent's dashboard."""
    panel = _dress(table.Panel(), title, description, "none", size)
    panel.color_scheme(_coloured(models.FieldColorModeId.THRESHOLDS))
    named = [(column, ref) for ref, column in zip("ABCDEFGH", columns, strict=False)]
    panel.targets(
        [
            _target(Query(column.expr, ""), ref).instant().format(PromQueryFormat.TABLE)
            for column, ref in named
        ]
    )
    panel.with_transformation(
        models.DataTransformerConfig("joinByField", options={"byField": "agent", "mode": "outer"})
    )
    titles = {"agent": "Agent"} | {f"Value #{ref}": column.title for column, ref in named}
    times = dict.fromkeys(("Time", *(f"Time {number}" for number in range(1, len(named) + 1))), True)
    organize = {"excludeByName": times, "indexByName": {}, "renameByName": titles}
    panel.with_transformation(models.DataTransformerConfig("organize", options=organize))
    panel.override_by_name("Agent", [models.DynamicConfigValue("links", [_agent_link()])])
    for column in columns:
        panel.override_by_name(column.title, _cell(column))
    return panel.sort_by([common.TableSortByFieldState().display_name(columns[0].title).desc(True)])


def labels_table(
    title: str, description: str, expr: str, *, labels: Sequence[str], size: tuple[int, int] = (8, 6)
) -> table.Panel:
    """Return the labels of an always-1 series as a table."""
    panel = _dress(table.Panel(), title, description, "string", size)
    panel.targets([_target(Query(expr, ""), "A").instant().format(PromQueryFormat.TABLE)])
    organize = {
        "excludeByName": {"Time": True, "Value": True},
        "indexByName": {label: index for index, label in enumerate(labels)},
        "renameByName": {label: label.capitalize() for label in labels},
    }
    return panel.with_transformation(models.DataTransformerConfig("organize", options=organize))


def state_words() -> list[tuple[int, str, str]]:
    """Return value, word and colour of every health state, for mappings."""
    return [(rank, state, colour) for state, (rank, colour) in STATES.items()]


def _dress(panel: _P, title: str, description: str, unit: str, size: tuple[int, int]) -> _P:
    width, height = size
    dressed = panel.title(title).description(description).unit(unit)
    return dressed.datasource(DATASOURCE).span(width).height(height)


def _target(query: Query, ref: str) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(ref).range()
    return target.datasource(DATASOURCE).exemplar(query.exemplars)


def _named(queries: Sequence[Query]) -> Iterable[tuple[Query, str]]:
    return zip(queries, "ABCDEFGH", strict=False)


def _thresholds(lines: Lines) -> builders.ThresholdsConfig:
    steps = [models.Threshold(None, GREEN), *(models.Threshold(value, colour) for value, colour in lines)]
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _coloured(mode: models.FieldColorModeId) -> builders.FieldColor:
    return builders.FieldColor().mode(mode)


def _fixed(colour: str) -> models.DynamicConfigValue:
    return models.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})


def _words(words: Iterable[tuple[int, str, str]]) -> models.ValueMap:
    return models.ValueMap(
        {str(value): models.ValueMappingResult(text=word, color=colour) for value, word, colour in words}
    )


def _cell(column: Column) -> list[models.DynamicConfigValue]:
    properties = [models.DynamicConfigValue("unit", column.unit)]
    if column.states:
        properties.append(models.DynamicConfigValue("mappings", [_words(state_words())]))
    if column.lines:
        properties.append(models.DynamicConfigValue("thresholds", _thresholds(column.lines).build()))
    if column.states or column.lines:
        properties.append(models.DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
    return properties


def _agent_link() -> dict[str, object]:
    # Data links do not inherit variables and time, so the link spells them out.
    kept = "${datasource:queryparam}&${job:queryparam}&${instance:queryparam}&${__url_time_range}"
    url = f"/d/{AGENT_UID}?var-agent=${{__value.text:percentencode}}&{kept}"
    return {"title": "What is ${__value.text} doing?", "url": url, "targetBlank": False}
