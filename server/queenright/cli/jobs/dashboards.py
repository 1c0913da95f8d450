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
from queenright.grafana.files import dashboards_folder
from queenright.grafana.queries import annotation_queries, queries
from queenright.grafana.thresholds import Thresholds
from queenright.health.settings import HealthSettings
from queenright.instrumentation import names
from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.extras import install_command
from queenright.server.settings import Settings, load_settings

INSTALL_GRAFANA: Final = (
    f"`.venv/bin/pip install -e '.[grafana]'` in a checkout; elsewhere {install_command('grafana')}"
)
_DEFAULTS: Final = (
    "The dashboards show the default thresholds, but the rules use yours. "
    f"Dashboards with your thresholds need the extra grafana: {INSTALL_GRAFANA}. Then export again."
)
_CONSOLE: Final = json.dumps("http://127.0.0.1:8420")
_METRIC: Final = re.compile(r"(?<![\w:.])((?:[a-z_]+:)?queenright_[a-z0-9_]+(?::\w+)?)(?![\w*.])")
_TEXT: Final = re.compile(r'"(?:\\.|[^"\\])*"')
_LINK: Final = re.compile(r"/d/(queenright-[a-z]+)")


class GrafanaRequiredError(QueenrightError):
    """Raised when dashboards need thresholds other than the defaults and the extra is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "the settings change thresholds, and dashboards with them need the extra grafana: "
            f"{INSTALL_GRAFANA}. For the default thresholds, pass --defaults."
        )


def render_dashboards(settings: Settings, *, defaults: bool = False) -> dict[str, str]:
    """
    Return every dashboard's JSON by file name.

    Args:
        settings: Thresholds are from ``health_monitoring``; links lead to ``alerting.console_url``.
        defaults: Use the default thresholds instead.

    Raises:
        GrafanaRequiredError: The thresholds are not the defaults, and the extra grafana is not installed.
    """
    console = settings.alerting.console_url.rstrip("/")
    if defaults or Thresholds.of(settings.health_monitoring) == Thresholds.of(HealthSettings()):
        files = texts_in(dashboards_folder(), "*.json")
        return {name: text.replace(_CONSOLE, json.dumps(console)) for name, text in files.items()}
    try:
        from queenright.grafana.boards import dashboards
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("grafana_foundation_sdk"):
            raise
        raise GrafanaRequiredError from None
    return dashboards(settings.health_monitoring, console=console)


def dashboards_or_defaults(settings: Settings) -> tuple[dict[str, str], str]:
    """Return the dashboards, and a warning if they have the default thresholds for want of the extra."""
    try:
        return render_dashboards(settings), ""
    except GrafanaRequiredError:
        return render_dashboards(settings, defaults=True), _DEFAULTS


def check(config: Path | None, folder: Path | None, *, defaults: bool, as_json: bool) -> int:
    """Check the dashboards, and compare those in ``folder`` with them; return 1 on errors."""
    settings = load_settings(config).linked_to_service()
    files = render_dashboards(settings, defaults=defaults)
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


def export(config: Path | None, output: Path, *, defaults: bool) -> int:
    """Write the dashboards' JSON."""
    files = render_dashboards(load_settings(config).linked_to_service(), defaults=defaults)
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
