"""`queenright rules export`: write the rules and their companion files."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import typer

from queenright.alerting.export.addresses import find_local_links
from queenright.alerting.export.alertmanager import UNSET_DEADMAN_URL, deadman_warning
from queenright.alerting.export.extra_files import Extras, read_texts
from queenright.alerting.export.kubernetes import Placement, kubernetes_files, prometheus_rule
from queenright.alerting.export.mixin import archive, mixin_files
from queenright.alerting.export.yaml_text import yaml_text
from queenright.alerting.rules import render
from queenright.cli.errors import UsageError
from queenright.cli.jobs.rules import RuleSelection, run_promtool
from queenright.grafana.export import render_dashboards
from queenright.grafana.files import provisioning_folder
from queenright.instrumentation.counts import format_count
from queenright.instrumentation.errors import QueenrightError
from queenright.server.ops.programs import find_program
from queenright.server.settings import Settings

_STDOUT: Final = "-"
_DEFAULT_SERVICE_URL: Final = "http://queenright:8420"
_HEADER: Final = "Written by `queenright rules export`."
_LABEL_PATTERN: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_./]{0,250})=([A-Za-z0-9]?[-A-Za-z0-9_.]{0,62})")


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """The environment that an export is for."""

    namespace: str = ""
    labels: Sequence[str] = ()
    deadman_url: str | None = None


def export(selection: RuleSelection, format_: str, output: Path, target: ExportTarget) -> int:
    """Write the rules; return the exit code. Writes nothing if promtool rejects them."""
    placement = Placement(namespace=target.namespace, labels=_parse_labels(target.labels))
    deadman = _check_deadman_url(target.deadman_url)
    if format_ == "kubernetes" and str(output) == _STDOUT:
        raise UsageError("--format kubernetes writes a folder, not standard output; pass a folder with -o.")
    settings = selection.load_settings()
    _check_with_promtool(selection.render_files(settings))
    is_full = format_ in ("kubernetes", "mixin")
    for warning in find_local_links(
        settings.alerting,
        selection.make_links(settings),
        service_url=(selection.options.service_url or _DEFAULT_SERVICE_URL) if is_full else None,
        dashboards=is_full,
    ):
        _print_warning(warning)
    if not is_full:
        return _export_rules(selection, settings, format_, output, placement)
    if lines := deadman_warning(deadman):
        _print_warning(" ".join(lines))
    return _export_full(selection, settings, format_, output, placement, deadman)


def _export_rules(
    selection: RuleSelection, settings: Settings, format_: str, output: Path, placement: Placement
) -> int:
    """Write the rules: rule files, or one object for the Prometheus operator."""
    groups = selection.make_groups(settings)
    if format_ == "prometheus" and str(output) != _STDOUT:
        return _print_written_files(output, _write_files(output, selection.render_files(settings)))
    if format_ == "prometheus":
        text = render(groups, (_HEADER,))
    else:
        text = yaml_text(prometheus_rule(groups, placement), comments=[_HEADER])
    if str(output) == _STDOUT:
        typer.echo(text, nl=False)
        return 0
    return _print_written_files(output, [_write_file(output, text)])


def _export_full(
    selection: RuleSelection,
    settings: Settings,
    format_: str,
    output: Path,
    placement: Placement,
    deadman: str,
) -> int:
    """Write rules, dashboards and Alertmanager configuration: a folder for Kustomize, or one archive."""
    extras = Extras(
        dashboards=render_dashboards(settings.health_monitoring, console=settings.alerting.console_url),
        provisioning=read_texts(provisioning_folder(), "*.yml"),
    )
    service = selection.options.service_url or _DEFAULT_SERVICE_URL
    if format_ == "kubernetes":
        files = kubernetes_files(
            selection.make_groups(settings),
            extras,
            placement,
            selectors=selection.make_selectors(),
            service_url=service,
            deadman_url=deadman,
        )
        return _print_written_files(output, _write_files(output, files))
    data = archive(
        mixin_files(selection.render_files(settings), extras, service_url=service, deadman_url=deadman)
    )
    if str(output) == _STDOUT:
        sys.stdout.buffer.write(data)
        return 0
    return _print_written_files(output, [_write_file(output, data)])


def _check_with_promtool(files: Mapping[str, str]) -> None:
    promtool = find_program("promtool")
    if promtool is not None and (faults := run_promtool(promtool, files)):
        raise QueenrightError("\n  ".join(["promtool rejects these rules; nothing was written:", *faults]))


def _check_deadman_url(url: str | None) -> str:
    """Return the URL of the dead man's switch, or the placeholder if there is none."""
    if url is None:
        return UNSET_DEADMAN_URL
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and not re.search(r"\s", url)
    except ValueError:
        is_url = False
    if not is_url:
        raise UsageError(
            "--deadman-url is not a URL; copy it from the check, such as https://hc-ping.com/5d2f…"
        )
    return url


def _print_warning(message: str) -> None:
    typer.echo(f"Warning: {message}", err=True)


def _parse_labels(texts: Sequence[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for label in (part for path in texts for part in path.split(",")):
        match = _LABEL_PATTERN.fullmatch(label.strip())
        if match is None:
            raise UsageError(
                f"--labels {label!r} is not a Kubernetes label; write NAME=VALUE, such as release=prometheus."
            )
        labels[match[1]] = match[2]
    return labels


def _write_files(folder: Path, files: Mapping[str, str]) -> list[Path]:
    return [_write_file(folder / name, text) for name, text in files.items()]


def _write_file(path: Path, content: str | bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise QueenrightError(f"cannot write {path}: {error.strerror}; pass another path with -o.") from error
    return path


def _print_written_files(output: Path, paths: Sequence[Path]) -> int:
    typer.echo(f"{format_count(len(paths), 'file')} in {output}" if paths != [output] else f"{output}")
    return 0
