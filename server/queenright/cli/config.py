"""`queenright config`: the settings."""

from __future__ import annotations

import typer

from queenright.cli.options import Config

config = typer.Typer(help="The settings.", no_args_is_help=True)


@config.command("check", epilog="Example: queenright config check --config queenright.yaml")
def config_check(config: Config = None) -> None:
    """Say whether `serve` would take the settings; every fault with its path and its value."""
    from queenright.server.settings import load_settings
    from queenright.server.settings_files import check_files

    check_files(load_settings(config))
    typer.echo("The settings are valid.")


@config.command("show", epilog="Example: queenright config show --config queenright.yaml")
def config_show(config: Config = None) -> None:
    """Print all settings as they are in force, secrets masked."""
    from queenright.cli.run import shown_settings
    from queenright.server.settings import load_settings

    typer.echo(shown_settings(load_settings(config)))
