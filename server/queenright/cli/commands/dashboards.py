"""`queenright dashboards`: the Grafana dashboards."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from queenright.cli.options import Config, Json
from queenright.instrumentation.errors import QueenrightError

dashboards = typer.Typer(no_args_is_help=True)


@dashboards.command("check", epilog="Example: queenright dashboards check /var/lib/grafana/dashboards")
def check(
    folder: Annotated[Path, typer.Argument(help="Folder of dashboards.")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Compare dashboards in a folder with the settings. Exit code 1: one is outdated or missing."""
    files = _render_dashboards(config)
    differences = _list_differences(files, folder)
    if as_json:
        typer.echo(json.dumps({"dashboards": sorted(files), "faults": differences}, indent=2))
    else:
        for difference in differences:
            typer.echo(difference, err=True)
        verdict = f"{len(differences)} outdated or missing" if differences else f"equal to {folder}"
        typer.echo(f"{len(files)} dashboards: {verdict}.")
    raise typer.Exit(1 if differences else 0)


@dashboards.command("export", epilog="Example: queenright dashboards export -o /var/lib/grafana/dashboards")
def export(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="PATH", help="Folder for the JSON files.")
    ],
    config: Config = None,
) -> None:
    """Write the dashboards as JSON, with the thresholds of the settings and links to the console."""
    files = _render_dashboards(config)
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (output / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise QueenrightError(f"cannot write to {output}: {error.strerror}; pass another folder.") from error
    typer.echo(f"Wrote {len(files)} dashboards to {output}.")


def _render_dashboards(config: Path | None) -> dict[str, str]:
    """Return the dashboards of the settings, as JSON by file name."""
    from queenright.grafana.export import render_dashboards
    from queenright.server.settings import load_settings

    settings = load_settings(config).with_console_url()
    return render_dashboards(settings.health_monitoring, console=settings.alerting.console_url)


def _list_differences(files: dict[str, str], folder: Path) -> list[str]:
    from queenright.alerting.export.extra_files import read_texts

    if not folder.is_dir():
        return [f"{folder} is not a folder"]
    existing = {name: text for name, text in read_texts(folder, "*.json").items() if name in files}
    return [
        f"{folder / name} is {'outdated' if name in existing else 'missing'}; "
        f"`queenright dashboards export -o {shlex.quote(str(folder))}` writes it"
        for name in sorted(files)
        if existing.get(name) != files[name]
    ]
