"""The dashboards for Grafana: whether they are right, and as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.commands.rules import Config, Json

dashboards = typer.Typer(
    help="The dashboards for Grafana: check them, take them along.", no_args_is_help=True
)

Defaults = Annotated[
    bool, typer.Option("--defaults", help="With the default thresholds, whatever the settings say.")
]


@dashboards.command("check", epilog="Example: queenright dashboards check /var/lib/grafana/dashboards")
def check(
    folder: Annotated[
        Path | None, typer.Argument(help="A folder of dashboards that should be as the settings give them.")
    ] = None,
    config: Config = None,
    defaults: Defaults = False,
    as_json: Json = False,
) -> None:
    """
    Say whether what the dashboards ask for and link to is there. Exit code 1: no.

    Thresholds of your own need the extra grafana: pip install 'queenright[grafana]'.
    """
    from queenright.cli.jobs import dashboards as dashboards_job

    raise typer.Exit(dashboards_job.check(config, folder, defaults=defaults, as_json=as_json))


@dashboards.command("export", epilog="Example: queenright dashboards export -o /var/lib/grafana/dashboards")
def export(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="PATH", help="Folder for the JSON files.")
    ],
    config: Config = None,
    defaults: Defaults = False,
) -> None:
    """
    Write the dashboards' JSON, with the threshold lines of the settings and links to the console.

    Thresholds of your own need the extra grafana: pip install 'queenright[grafana]'.
    """
    from queenright.cli.jobs import dashboards as dashboards_job

    raise typer.Exit(dashboards_job.export(config, output, defaults=defaults))
