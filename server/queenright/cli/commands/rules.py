"""`queenright rules`: the Prometheus rules generated from the settings."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.options import Json, RuleOptions
from queenright.cli.service import with_options

rules = typer.Typer(no_args_is_help=True)


class Format(StrEnum):
    """Format of an export."""

    PROMETHEUS = "prometheus"
    PROMETHEUSRULE = "prometheusrule"
    KUBERNETES = "kubernetes"
    MIXIN = "mixin"


@rules.command("check", epilog="Example: queenright rules check --config queenright.yaml")
@with_options(RuleOptions)
def check(options: RuleOptions, as_json: Json = False) -> None:
    """
    Check the rules generated from the settings; print every error with its rule.

    Uses promtool, if it is installed, and built-in checks of metrics, runbooks and labels. Exit code 1:
    errors.
    """
    from queenright.cli.jobs import rules as job

    raise typer.Exit(job.check(job.RuleSelection(options), as_json=as_json))


@rules.command("export", epilog="Example: queenright rules export -o /etc/prometheus/rules")
@with_options(RuleOptions)
def export(
    options: RuleOptions,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="PATH", help="Folder, or file of a mixin; - is standard output."
        ),
    ],
    format_: Annotated[Format, typer.Option("--format", help="Format of the export.")] = Format.PROMETHEUS,
    namespace: Annotated[str, typer.Option(help="Namespace of the Kubernetes objects.")] = "",
    labels: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Label of the Kubernetes objects; repeatable."),
    ] = None,
    deadman_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="External check that the Watchdog alert pings every minute; it alarms on silence.",
        ),
    ] = None,
) -> None:
    """
    Write the rules generated from the settings.

    prometheus: rule files. prometheusrule: one object for the Prometheus operator. kubernetes: a folder for
    Kustomize, with dashboards, monitors and Helm values. mixin: one archive with rules, dashboards, runbooks.
    """
    from queenright.cli.jobs import rules as job
    from queenright.cli.jobs import rules_export

    target = rules_export.ExportTarget(namespace, tuple(labels or ()), deadman_url)
    raise typer.Exit(rules_export.export(job.RuleSelection(options), format_.value, output, target))


@rules.command("diff", epilog="Example: queenright rules diff --prometheus http://prometheus:9090")
@with_options(RuleOptions)
def diff(
    options: RuleOptions,
    files: Annotated[
        list[Path] | None, typer.Argument(help="Rule files, PrometheusRules, or folders of them.")
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Compare with the rules that this Prometheus has loaded."),
    ] = None,
    as_json: Json = False,
) -> None:
    """
    Compare the rules generated from the settings with rule files or with a Prometheus.

    Default: the Prometheus of judging.prometheus_url. Rules without a Queenright name are ignored. Exit code
    0: equal; 1: different; 2: the comparison failed.
    """
    from queenright.cli.jobs import rules as job
    from queenright.instrumentation.errors import QueenrightError

    if files and prometheus is not None:
        raise typer.BadParameter("compare with files or with a Prometheus, not with both")
    try:
        code = job.diff(job.RuleSelection(options), files or [], prometheus, as_json=as_json)
    except QueenrightError as error:
        typer.echo(f"queenright: {error}", err=True)
        code = 2
    raise typer.Exit(code)
