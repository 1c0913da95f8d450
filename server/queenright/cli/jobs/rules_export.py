"""What `queenright rules export` does: the rules, and what goes with them, as files for any stack."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import typer

from queenright.alerting.export import Extras
from queenright.alerting.export.addresses import links_here
from queenright.alerting.export.alertmanager import NO_DEADMAN, about_deadman
from queenright.alerting.export.kubernetes import Place, kubernetes_files, prometheus_rule
from queenright.alerting.export.mixin import archive, mixin_files
from queenright.alerting.export.taken import texts_in
from queenright.alerting.export.yaml_text import yaml_text
from queenright.alerting.rules import render
from queenright.cli.jobs.dashboards import taken_along
from queenright.cli.jobs.rules import Asked, promtool_faults
from queenright.cli.errors import UsageError
from queenright.grafana.files import provisioning_folder
from queenright.instrumentation.errors import QueenrightError
from queenright.server.ops.programs import find_program
from queenright.server.settings import Settings

_STDOUT: Final = "-"
_SERVICE: Final = "http://queenright:8420"
_WRITTEN: Final = "Written by `queenright rules export`."
_LABEL: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_./]{0,250})=([A-Za-z0-9]?[-A-Za-z0-9_.]{0,62})")


@dataclass(frozen=True, slots=True)
class Stack:
    """What an export is told of the stack that it is for."""

    namespace: str = ""
    labels: Sequence[str] = ()
    deadman_url: str | None = None


def export(asked: Asked, format_: str, output: Path, stack: Stack) -> int:
    """Write the rules; see `queenright rules export`. Nothing if Prometheus would not take them."""
    place = Place(namespace=stack.namespace, labels=_labels(stack.labels))
    deadman = _deadman(stack.deadman_url)
    if format_ == "kubernetes" and str(output) == _STDOUT:
        raise UsageError("a folder for Kustomize does not fit standard output; name one with -o.")
    settings = asked.settings()
    _let_promtool_see(asked.files(settings))
    whole = format_ in ("kubernetes", "mixin")
    for words in links_here(
        settings.alerting,
        asked.links(settings),
        service_url=(asked.service_url or _SERVICE) if whole else None,
        dashboards=whole,
    ):
        _warn(words)
    if not whole:
        return _rules(asked, settings, format_, output, place)
    if said := about_deadman(deadman):
        _warn(" ".join(said))
    return _everything(asked, settings, format_, output, place, deadman)


def _rules(asked: Asked, settings: Settings, format_: str, output: Path, place: Place) -> int:
    """Write the rules alone: rule files, or one object for the operator."""
    groups = asked.groups(settings)
    if format_ == "prometheus" and str(output) != _STDOUT:
        return _say(output, _write(output, asked.files(settings)))
    if format_ == "prometheus":
        text = render(groups, (_WRITTEN,))
    else:
        text = yaml_text(prometheus_rule(groups, place), comments=[_WRITTEN])
    if str(output) == _STDOUT:
        typer.echo(text, nl=False)
        return 0
    return _say(output, [_write_file(output, text)])


def _everything(
    asked: Asked, settings: Settings, format_: str, output: Path, place: Place, deadman: str
) -> int:
    """Write the rules with dashboards and Alertmanager's part: a folder for Kustomize, or one archive."""
    boards, note = taken_along(settings)
    if note:
        _warn(note)
    extras = Extras(
        dashboards=boards, dashboards_note=note, provisioning=texts_in(provisioning_folder(), "*.yml")
    )
    service = asked.service_url or _SERVICE
    if format_ == "kubernetes":
        files = kubernetes_files(
            asked.groups(settings),
            extras,
            place,
            selectors=asked.selectors(),
            service_url=service,
            deadman_url=deadman,
        )
        return _say(output, _write(output, files))
    data = archive(mixin_files(asked.files(settings), extras, service_url=service, deadman_url=deadman))
    if str(output) == _STDOUT:
        sys.stdout.buffer.write(data)
        return 0
    return _say(output, [_write_file(output, data)])


def _let_promtool_see(files: Mapping[str, str]) -> None:
    promtool = find_program("promtool")
    if promtool is not None and (faults := promtool_faults(promtool, files)):
        raise QueenrightError(
            "\n  ".join(["Prometheus would not take these rules, so nothing was written:", *faults])
        )


def _deadman(url: str | None) -> str:
    """Return the dead man's address, once it is seen to be one."""
    if url is None:
        return NO_DEADMAN
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and not re.search(r"\s", url)
    except ValueError:
        good = False
    if not good:
        raise UsageError(
            "--deadman-url is no address; write it like https://hc-ping.com/5d2f…, as the check gives it."
        )
    return url


def _warn(words: str) -> None:
    typer.echo(f"Warning: {words}", err=True)


def _labels(said: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for label in (part for one in said for part in one.split(",")):
        read = _LABEL.fullmatch(label.strip())
        if read is None:
            raise UsageError(
                f"--labels {label!r} is no label of Kubernetes; write it like release=prometheus."
            )
        found[read[1]] = read[2]
    return found


def _write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    return [_write_file(folder / name, text) for name, text in files.items()]


def _write_file(path: Path, content: str | bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise QueenrightError(
            f"cannot write {path}: {error.strerror}; name another place with -o."
        ) from error
    return path


def _say(output: Path, written: Sequence[Path]) -> int:
    typer.echo(f"{len(written)} files in {output}" if written != [output] else f"{output}")
    return 0
