"""Panel types of the dashboards, each with a title, a description, a unit and queries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from grafana_foundation_sdk.builders import (
    bargauge,
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

from queenright.grafana.export import Lines
from tools.dashboards.promql import SHOWN
from tools.dashboards.states import GREEN

TOKENS_PER_SECOND: Final = "suffix:tokens/s"
"""A custom unit, because Grafana has none for tokens."""
DATASOURCE: Final = models.DataSourceRef(type_val="prometheus", uid="${datasource}")

AnyPanel = timeseries.Panel | stat.Panel | statetimeline.Panel | table.Panel | heatmap.Panel | bargauge.Panel
_P = TypeVar(
    "_P",
    timeseries.Panel,
    stat.Panel,
    statetimeline.Panel,
    table.Panel,
    heatmap.Panel,
    bargauge.Panel,
)


@dataclass(frozen=True, slots=True)
class Row:
    """A heading and the panels below it."""

    title: str
    panels: Sequence[AnyPanel]


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL query and its legend; ``exemplars`` shows the exemplars of a histogram."""

    expr: str
    legend: str = "__auto"
    exemplars: bool = False

    @property
    def is_over_range(self) -> bool:
        """Whether the query covers the dashboard's whole time range."""
        return SHOWN in self.expr


def time_series(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    size: tuple[int, int] = (8, 8),
    lines: Lines = (),
    is_stacked: bool = False,
    colours: Iterable[tuple[str, str]] = (),
    patterns: Iterable[tuple[str, str]] = (),
    maximum: float | None = None,
) -> timeseries.Panel:
    """
    Return a time series panel.

    ``lines`` are thresholds; ``colours`` fix the colour of a series by its name, ``patterns`` by a regular
    expression such as ``/error$/``.
    """
    panel = set_common_options(timeseries.Panel(), title, description, unit, size)
    panel.min(0).line_width(1).fill_opacity(80 if is_stacked else 10).span_nulls(False)
    panel.show_points(common_models.VisibilityMode.AUTO).color_scheme(
        colour_scheme(models.FieldColorModeId.PALETTE_CLASSIC_BY_NAME)
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
    if is_stacked:
        panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL).group("A"))
    if lines:
        panel.thresholds(thresholds(lines))
        panel.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.DASHED)
        )
    if maximum is not None:
        panel.max(maximum)
    for name, colour in colours:
        panel.override_by_name(name, [models.DynamicConfigValue("color", _fixed_color(colour))])
    for pattern, colour in patterns:
        panel.override_by_regexp(pattern, [models.DynamicConfigValue("color", _fixed_color(colour))])
    return panel.targets([target(query, ref) for query, ref in with_refs(queries)])


def counts(
    title: str,
    description: str,
    *queries: Query,
    size: tuple[int, int] = (8, 8),
    colours: Iterable[tuple[str, str]] = (),
    patterns: Iterable[tuple[str, str]] = (),
) -> timeseries.Panel:
    """Return a panel of stacked bars of at least a minute, for rare events; see ``counts_by``."""
    panel = time_series(
        title, description, "short", *queries, size=size, is_stacked=True, colours=colours, patterns=patterns
    )
    # A rate is extrapolated between scrapes, so a whole number may appear as 0.9.
    panel.decimals(0)
    return panel.interval("1m").draw_style(common_models.GraphDrawStyle.BARS)


def numbers(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    size: tuple[int, int] = (8, 5),
    lines: Lines = (),
    colours: Iterable[tuple[str, str]] = (),
    words: Sequence[tuple[int, str, str]] = (),
) -> stat.Panel:
    """
    Return a stat panel with current values or values over the time range; "no data" if there is none.

    Args:
        size: Width (of 24) and height.
        lines: Thresholds of the background colour; current values below them are green.
        colours: Colours of series by name, for values of at least 1.
    """
    panel = set_common_options(stat.Panel(), title, description, unit, size)
    panel.color_mode(common_models.BigValueColorMode.BACKGROUND_SOLID)
    panel.graph_mode(common_models.BigValueGraphMode.NONE)
    panel.text_mode(common_models.BigValueTextMode.VALUE_AND_NAME)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False).fields(""))
    panel.no_value("no data").mappings([value_map(words)] if words else [])
    # Green means healthy now, so it is not used for values over a time range.
    base_colour = GREEN if lines and not any(query.is_over_range for query in queries) else "transparent"
    panel.thresholds(_steps((None, base_colour), *lines))
    panel.color_scheme(colour_scheme(models.FieldColorModeId.THRESHOLDS))
    if unit == "short":  # an increase is extrapolated between scrapes: 7.16 for a whole number
        panel.decimals(0)
    for name, colour in colours:
        steps = _steps((None, "transparent"), (1, colour)).build()
        panel.override_by_name(name, [models.DynamicConfigValue("thresholds", steps)])
    return panel.targets([target(query, ref).instant() for query, ref in with_refs(queries)])


def gauges(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    size: tuple[int, int] = (8, 5),
    lines: Lines,
    maximum: float,
) -> bargauge.Panel:
    """Return a bar gauge of current values between 0 and ``maximum``, coloured by thresholds."""
    panel = set_common_options(bargauge.Panel(), title, description, unit, size).min(0).max(maximum)
    panel.orientation(common_models.VizOrientation.HORIZONTAL)
    panel.display_mode(common_models.BarGaugeDisplayMode.BASIC)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]).values(False).fields(""))
    panel.thresholds(thresholds(lines)).color_scheme(colour_scheme(models.FieldColorModeId.THRESHOLDS))
    panel.no_value("no data")
    return panel.targets([target(query, ref).instant() for query, ref in with_refs(queries)])


def state_history(
    title: str,
    description: str,
    query: Query,
    *,
    words: Iterable[tuple[int, str, str]],
    size: tuple[int, int] = (24, 6),
) -> statetimeline.Panel:
    """Return a state timeline; ``words`` are value mappings: value, text and colour."""
    panel = set_common_options(statetimeline.Panel(), title, description, "none", size)
    panel.mappings([value_map(words)]).show_value(common_models.VisibilityMode.AUTO).row_height(0.85)
    panel.merge_values(True).fill_opacity(75).line_width(0)
    panel.color_scheme(colour_scheme(models.FieldColorModeId.THRESHOLDS))
    return panel.targets([target(query, "A")])


def heat_map(
    title: str, description: str, unit: str, query: Query, *, size: tuple[int, int] = (8, 8)
) -> heatmap.Panel:
    """Return a heat map of a histogram's buckets."""
    panel = set_common_options(heatmap.Panel(), title, description, "short", size).calculate(False)
    panel.y_axis(heatmap.YAxisConfig().unit(unit))
    panel.color(heatmap.HeatmapColorOptions().mode(heatmap_models.HeatmapColorMode.SCHEME).scheme("Oranges"))
    return panel.targets([target(query, "A").format(PromQueryFormat.HEATMAP)])


def set_common_options(panel: _P, title: str, description: str, unit: str, size: tuple[int, int]) -> _P:
    """Set the common properties of a panel."""
    width, height = size
    result = panel.title(title).description(description).unit(unit)
    return result.datasource(DATASOURCE).span(width).height(height)


def target(query: Query, ref: str) -> prometheus.Dataquery:
    """Return a range query for a panel."""
    data_query = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(ref)
    data_query.datasource(DATASOURCE).exemplar(query.exemplars)
    return data_query.range()


def with_refs(queries: Sequence[Query]) -> Iterable[tuple[Query, str]]:
    """Return each query with its reference letter."""
    return zip(queries, "ABCDEFGH", strict=False)


def thresholds(lines: Lines) -> builders.ThresholdsConfig:
    """Return thresholds that are green below the first line."""
    return _steps((None, GREEN), *lines)


def colour_scheme(mode: models.FieldColorModeId) -> builders.FieldColor:
    """Return a colour scheme."""
    return builders.FieldColor().mode(mode)


def value_map(words: Iterable[tuple[int, str, str]]) -> models.ValueMap:
    """Return value mappings to texts and colours."""
    return models.ValueMap(
        {str(value): models.ValueMappingResult(text=word, color=colour) for value, word, colour in words}
    )


def _steps(*steps: tuple[float | None, str]) -> builders.ThresholdsConfig:
    threshold_list = [models.Threshold(value, colour) for value, colour in steps]
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(threshold_list)


def _fixed_color(colour: str) -> dict[str, object]:
    return {"mode": "fixed", "fixedColor": colour}
