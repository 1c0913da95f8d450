"""`queenright evaluate`: what is found in recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.options import Config, Json


def evaluate(
    files: Annotated[list[Path], typer.Argument(help="Recorded runs, .jsonl or .jsonl.gz.")],
    as_json: Json = False,
    config: Config = None,
) -> None:
    """Run the deterministic detectors over recorded runs."""
    from queenright.cli.jobs.evaluate import evaluated
    from queenright.server.settings import load_settings

    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        typer.echo(f"queenright: no such file: {', '.join(missing)}", err=True)
        raise typer.Exit(2)
    for line in evaluated(files, load_settings(config).health_monitoring, as_json=as_json):
        typer.echo(line)
