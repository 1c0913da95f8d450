"""`queenright dashboards`: check and export the Grafana dashboards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import typer

from queenright.alerting.export.extra_files import read_texts
from queenright.grafana.export import render_dashboards
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.errors import QueenrightError
from queenright.server.settings import load_settings


def check(config: Path | None, folder: Path, *, as_json: bool) -> int:
    """Compare the dashboards in ``folder`` with those of the settings; return 1 if one differs."""
    settings = load_settings(config).linked_to_service()
    files = render_dashboards(settings.health_monitoring, console=settings.alerting.console_url)
    faults = _differences(files, folder)
    if as_json:
        typer.echo(json.dumps({"dashboards": sorted(files), "faults": faults}, indent=2))
        return 1 if faults else 0
    for fault in faults:
        typer.echo(fault, err=True)
    verdict = format_count(len(faults), "error") if faults else f"equal to {folder}"
    typer.echo(f"{len(files)} dashboards: {verdict}.")
    return 1 if faults else 0


def export(config: Path | None, output: Path) -> int:
    """Write the dashboards' JSON."""
    settings = load_settings(config).linked_to_service()
    files = render_dashboards(settings.health_monitoring, console=settings.alerting.console_url)
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (output / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise QueenrightError(f"cannot write to {output}: {error.strerror}; name another folder.") from error
    typer.echo(f"{len(files)} dashboards in {output}")
    return 0


def _differences(files: Mapping[str, str], folder: Path) -> list[str]:
    if not folder.is_dir():
        return [f"{folder} is not a folder"]
    existing = {name: text for name, text in read_texts(folder, "*.json").items() if name in files}
    return [
        f"{folder / name} is {'outdated' if name in existing else 'missing'}; "
        "`queenright dashboards export` writes it"
        for name in sorted(files)
        if existing.get(name) != files[name]
    ]
