"""`queenright dashboards`: the Grafana dashboards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.options import Config, Json

dashboards = typer.Typer(help="Check and export the Grafana dashboards.", no_args_is_help=True)


@dashboards.command("check", epilog="Example: queenright dashboards check /var/lib/grafana/dashboards")
def check(
    folder: Annotated[Path, typer.Argument(help="Folder of dashboards.")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Compare dashboards in a folder with those of the settings. Exit code 1: one is outdated or missing."""
    from queenright.cli.jobs import dashboards as job

    raise typer.Exit(job.check(config, folder, as_json=as_json))


@dashboards.command("export", epilog="Example: queenright dashboards export -o /var/lib/grafana/dashboards")
def export(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="PATH", help="Folder for the JSON files.")
    ],
    config: Config = None,
) -> None:
    """Write the dashboards as JSON, with the thresholds of the settings and links to the console."""
    from queenright.cli.jobs import dashboards as job

    raise typer.Exit(job.export(config, output))
