"""`queenright dashboards`: check and export the Grafana dashboards."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import typer

from queenright.alerting.export import parse_rule_groups
from queenright.alerting.export.extra_files import texts_in
from queenright.alerting.rules import rule_groups
from queenright.grafana.export import render_dashboards
from queenright.grafana.queries import annotation_queries, queries
from queenright.health.settings import HealthSettings
from queenright.instrumentation import names
from queenright.instrumentation.errors import QueenrightError
from queenright.server.settings import load_settings

_METRIC: Final = re.compile(r"(?<![\w:.])((?:[a-z_]+:)?queenright_[a-z0-9_]+(?::\w+)?)(?![\w*.])")
_TEXT: Final = re.compile(r'"(?:\\.|[^"\\])*"')
_LINK: Final = re.compile(r"/d/(queenright-[a-z]+)")


def check(config: Path | None, folder: Path | None, *, as_json: bool) -> int:
    """Check the dashboards, and compare those in ``folder`` with them; return 1 on errors."""
    settings = load_settings(config).linked_to_service()
    files = render_dashboards(settings.health_monitoring, console=settings.alerting.console_url)
    faults = _faults(files, settings.health_monitoring)
    if folder is not None:
        faults += _differences(files, folder)
    if as_json:
        typer.echo(json.dumps({"dashboards": sorted(files), "faults": faults}, indent=2))
        return 1 if faults else 0
    for fault in faults:
        typer.echo(fault, err=True)
    where = f", equal to {folder}" if folder is not None and not faults else ""
    verdict = f"{len(faults)} error{'s' * (len(faults) > 1)}" if faults else f"valid{where}"
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
    existing = {name: text for name, text in texts_in(folder, "*.json").items() if name in files}
    return [
        f"{folder / name} is {'outdated' if name in existing else 'missing'}; "
        "`queenright dashboards export` writes it"
        for name in sorted(files)
        if existing.get(name) != files[name]
    ]


def _faults(files: Mapping[str, str], settings: HealthSettings) -> list[str]:
    """Return errors: unknown metrics, dead links, duplicate uids."""
    recorded = {rule.name for rule in parse_rule_groups(rule_groups(settings)) if not rule.is_alert}
    boards: dict[str, dict[str, Any]] = {name: json.loads(text) for name, text in files.items()}
    uids = [board["uid"] for board in boards.values()]
    errors = [f"duplicate uid {uid}" for uid in sorted(set(uids)) if uids.count(uid) > 1]
    for name, board in boards.items():
        panels = [*queries(board, variables={}), *annotation_queries(board, variables={})]
        metrics = {metric for panel in panels for metric in _METRIC.findall(_TEXT.sub('""', panel.expr))}
        errors += [
            f"{name}: unknown metric {metric}"
            for metric in sorted(metrics)
            if not _is_known(metric, recorded)
        ]
        errors += [
            f"{name}: link to unknown dashboard {uid}"
            for uid in sorted(set(_LINK.findall(files[name])) - set(uids))
        ]
    return errors


def _is_known(metric: str, recorded: set[str]) -> bool:
    base = re.sub(r"_(bucket|sum|count)$", "", metric)
    histogram = base in names.METRICS and names.METRICS[base].kind == "histogram"
    return metric in names.METRICS or metric in recorded or histogram
