"""Common parts of all dashboards: variables, links, annotations and layout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models

from queenright.instrumentation import names
from tools.dashboards.firing import FIRING
from tools.dashboards.links import UIDS, dashboard_links
from tools.dashboards.panels import DATASOURCE, Row
from tools.dashboards.promql import increase_by

TAG: Final = "queenright"

# A standby of a cluster has no series about agents.
_NAMES = f'__name__=~"{names.WORKER_INFO}|{names.AGENTS}|{names.CLUSTER_MEMBERS}"'
_SERIES = f"{{{_NAMES}}}"
_IN_JOB = f'{{{_NAMES}, job=~"$job"}}'
_AGENTS = f'{{__name__=~"{names.WORKER_INFO}|{names.AGENT_STATE}", job=~"$job", instance=~"$instance"}}'


def dashboard(name: str, title: str, question: str, rows: Iterable[Row], *, console: str) -> models.Dashboard:
    """
    Return a read-only dashboard with the common variables, links and annotations around ``rows``.

    Args:
        name: One of ``UIDS``.
        title: Title, shown after "Queenright /".
        question: Description: the question that the dashboard answers.
        console: Default of the variable ``console``.
    """
    board = builders.Dashboard(f"Queenright / {title}").uid(UIDS[name]).description(question)
    board.tags([TAG]).readonly()
    board.time("now-1h", "now").refresh("30s").timezone("browser")
    board.tooltip(models.DashboardCursorSync.CROSSHAIR)
    board.variables([_datasource(), *_variables(), _console(console)]).links(dashboard_links(TAG))
    board.annotations(_annotations())
    number = 0
    for row in rows:
        number += 1
        board.with_row(builders.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            board.with_panel(panel.id(number))
    return board.build()


def _datasource() -> builders.DatasourceVariable:
    return builders.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _variables() -> list[builders.QueryVariable]:
    queries = {
        "job": f"label_values({_SERIES}, job)",
        "instance": f"label_values({_IN_JOB}, instance)",
        "agent": f"label_values({_AGENTS}, agent)",
    }
    return [
        builders.QueryVariable(name)
        .label(name.capitalize())
        .datasource(DATASOURCE)
        .query(query)
        .multi(True)
        .include_all(True)
        .all_value(".+")
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_ASC)
        for name, query in queries.items()
    ]


def _console(address: str) -> builders.TextBoxVariable:
    variable = builders.TextBoxVariable("console").label("Console").default_value(address)
    variable.description(
        "URL of the Queenright console, used by links to nudge, terminate, recover and reset"
    )
    return variable.current(models.VariableOption(selected=True, text=address, value=address))


class _PrometheusAnnotation(models.AnnotationQuery):
    """An annotation with the text fields of the Prometheus data source, which the SDK's model lacks."""

    def __init__(self, name: str, colour: str, expr: str, title: str, text: str) -> None:
        super().__init__(
            name=name, datasource=DATASOURCE, enable=True, hide=False, icon_color=colour, expr=expr
        )
        self.built_in = None
        self.title_format = title
        self.text_format = text

    def to_json(self) -> dict[str, object]:
        """Return the annotation in Grafana's JSON format."""
        return {**super().to_json(), "titleFormat": self.title_format, "textFormat": self.text_format}


class _Annotation(Builder[models.AnnotationQuery]):
    """Wraps a finished annotation for the dashboard builder."""

    def __init__(self, annotation: models.AnnotationQuery) -> None:
        self._annotation = annotation

    def build(self) -> models.AnnotationQuery:
        """Return the annotation."""
        return self._annotation


def _annotations() -> list[Builder[models.AnnotationQuery]]:
    notifications = 'decision=~"intervene|bypass"'
    annotations = [
        _PrometheusAnnotation(
            "Operator notified",
            "purple",
            f"{increase_by('decision', names.TRIAGE, notifications)} > 0",
            "Operator notified",
            "The queen's decision: {{decision}}",
        ),
        _PrometheusAnnotation(
            "Interventions",
            "orange",
            f"{increase_by('kind, outcome', names.INTERVENTIONS)} > 0",
            "Intervention: {{kind}}",
            "Outcome: {{outcome}}",
        ),
        _PrometheusAnnotation(
            "Firing alerts",
            "red",
            f"max by (alertname, severity, agent) ({FIRING})",
            "{{alertname}}",
            "{{severity}} {{agent}}",
        ),
    ]
    return [_Annotation(annotation) for annotation in annotations]
