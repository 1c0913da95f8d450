"""The rules for Prometheus: whether they are right, as files for any stack, and what is loaded besides."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

rules = typer.Typer(
    help="The rules for Prometheus, made from the settings: check them, take them along, compare them.",
    no_args_is_help=True,
)


class Format(StrEnum):
    """What an export is for."""

    PROMETHEUS = "prometheus"
    PROMETHEUSRULE = "prometheusrule"
    KUBERNETES = "kubernetes"
    MIXIN = "mixin"


Config = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="PATH", help="Settings file; queenright.yaml if there is one."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Service = Annotated[
    str, typer.Option("--service-selector", metavar="MATCHERS", help="""Of the service: 'job="x"'.""")
]
Worker = Annotated[
    str, typer.Option("--worker-selector", metavar="MATCHERS", help="""Of the workers: 'namespace="x"'.""")
]
Runbooks = Annotated[
    str | None, typer.Option(metavar="URL", help="Where runbooks are; alerting.runbook_url without.")
]
Dashboards = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="What comes before a dashboard's uid; of alerting.dashboard_url without."
    ),
]


ServiceUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Where Queenright is reached: by Alertmanager (http://queenright:8420 without), and by people "
        "unless alerting.console_url says where.",
    ),
]


@rules.command("check", epilog="Example: queenright rules check --config queenright.yaml")
def check(
    config: Config = None,
    service_selector: Service = "",
    worker_selector: Worker = "",
    as_json: Json = False,
) -> None:
    """
    Say whether Prometheus would take the rules that the settings give; every fault with its rule.

    By promtool, if it is there, and by our own checks of metrics, runbooks and labels. Exit code 1: no.
    """
    from queenright.cli.jobs import rules as rules_job

    asked = rules_job.Asked(config, service_selector, worker_selector)
    raise typer.Exit(rules_job.check(asked, as_json=as_json))


@rules.command("export", epilog="Example: queenright rules export -o /etc/prometheus/rules")
def export(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="PATH", help="Folder, or file of a mixin; - is standard output."
        ),
    ],
    config: Config = None,
    format_: Annotated[Format, typer.Option("--format", help="For whom.")] = Format.PROMETHEUS,
    service_selector: Service = "",
    worker_selector: Worker = "",
    runbooks: Runbooks = None,
    dashboards: Dashboards = None,
    namespace: Annotated[str, typer.Option(help="Of Kubernetes' objects.")] = "",
    labels: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label for Kubernetes' objects; several.")
    ] = None,
    service_url: ServiceUrl = None,
    deadman_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="A check elsewhere that expects the Watchdog's ping every minute, or alarms."
        ),
    ] = None,
) -> None:
    """
    Write the rules that the settings give.

    prometheus: rule files. prometheusrule: one object for the Prometheus operator. kubernetes: a folder for
    Kustomize, with dashboards, monitors and Helm values. mixin: one archive with rules, dashboards, runbooks.
    """
    from queenright.cli.jobs import rules_export
    from queenright.cli.jobs import rules as rules_job

    asked = rules_job.Asked(config, service_selector, worker_selector, runbooks, dashboards, service_url)
    stack = rules_export.Stack(namespace, tuple(labels or ()), deadman_url)
    raise typer.Exit(rules_export.export(asked, format_.value, output, stack))


@rules.command("diff", epilog="Example: queenright rules diff --prometheus http://prometheus:9090")
def diff(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Rule files, PrometheusRules, or folders of them.")
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="Compare with what this Prometheus has loaded.")
    ] = None,
    config: Config = None,
    service_selector: Service = "",
    worker_selector: Worker = "",
    runbooks: Runbooks = None,
    dashboards: Dashboards = None,
    service_url: ServiceUrl = None,
    as_json: Json = False,
) -> None:
    """
    Say what differs between the rules that the settings give and those of files or of a Prometheus.

    Without either it asks the Prometheus of judging.prometheus_url. Exit code 0: nothing; 1: something;
    2: they could not be compared. Rules that go by no name of Queenright's are passed over.
    """
    from queenright.cli.jobs import rules as rules_job
    from queenright.instrumentation.errors import QueenrightError

    if files and prometheus is not None:
        raise typer.BadParameter("compare with files or with a Prometheus, not with both")
    asked = rules_job.Asked(config, service_selector, worker_selector, runbooks, dashboards, service_url)
    try:
        code = rules_job.diff(asked, files or [], prometheus, as_json=as_json)
    except QueenrightError as error:
        typer.echo(f"queenright: {error}", err=True)
        code = 2
    raise typer.Exit(code)
