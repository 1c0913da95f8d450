"""`queenright config`: the settings."""

from __future__ import annotations

import typer

from queenright.cli.options import Config, Json

config = typer.Typer(help="The settings.", no_args_is_help=True)


@config.command("check", epilog="Example: queenright config check --config queenright.yaml")
def config_check(config: Config = None) -> None:
    """Say whether `serve` would take the settings; every fault with its path and its value."""
    from queenright.server.ops.settings_files import check_files
    from queenright.server.settings import load_settings

    check_files(load_settings(config))
    typer.echo("The settings are valid.")


@config.command("show", epilog="Example: queenright config show --config queenright.yaml")
def config_show(config: Config = None, as_json: Json = False) -> None:
    """Print all settings as they are in force, secrets masked."""
    from queenright.cli.jobs.service import shown_settings
    from queenright.server.settings import load_settings

    shown = shown_settings(load_settings(config))
    if as_json:
        import json

        import yaml

        shown = json.dumps(yaml.safe_load(shown), indent=2)
    typer.echo(shown)
