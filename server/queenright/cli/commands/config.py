"""`queenright config`: check and show the settings."""

from __future__ import annotations

import typer

from queenright.cli.options import Config, Json

config = typer.Typer(no_args_is_help=True)


@config.command("check", epilog="Example: queenright config check --config queenright.yaml")
def config_check(config: Config = None) -> None:
    """Check the settings; print every error with its path and value."""
    from queenright.server.ops.settings_files import check_files, check_usability
    from queenright.server.settings import load_settings

    settings = load_settings(config)
    check_files(settings)
    check_usability(settings)
    typer.echo("The settings are valid.")


@config.command("show", epilog="Example: queenright config show --config queenright.yaml")
def config_show(config: Config = None, as_json: Json = False) -> None:
    """Print all settings in force, with secrets masked."""
    import json

    import yaml

    from queenright.server.settings import load_settings

    values = load_settings(config).model_dump(mode="json")
    typer.echo(json.dumps(values, indent=2) if as_json else yaml.safe_dump(values, sort_keys=False))
