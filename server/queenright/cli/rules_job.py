"""What `queenright rules` does."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import typer

from queenright.alerting.export import (
    Difference,
    Extras,
    LoadedRule,
    check_rules,
    compare,
    in_answer,
    in_files,
    in_groups,
    links_of,
)
from queenright.alerting.export.alertmanager import NO_DEADMAN, about_deadman
from queenright.alerting.export.kubernetes import Place, kubernetes_files, prometheus_rule
from queenright.alerting.export.mixin import archive, mixin_files
from queenright.alerting.export.taken import texts_in
from queenright.alerting.export.yaml_text import yaml_text
from queenright.alerting.rules import Alert, Group, Selectors, render, rule_files, rule_groups
from queenright.cli.dashboards_job import dashboards_of
from queenright.grafana.files import provisioning_folder
from queenright.instrumentation.errors import QueenrightError
from queenright.server.programs import find_program
from queenright.server.settings import Settings, load_settings

_STDOUT: Final = "-"
_LABEL: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_./]{0,250})=([A-Za-z0-9]?[-A-Za-z0-9_.]{0,62})")
_MATCHERS: Final = re.compile(r'\s*[A-Za-z_]\w*\s*(?:=~|!~|!=|=)\s*"(?:\\.|[^"\\])*"\s*(?:,|$)')
_SIGNS: Final = {"added": "+", "removed": "-", "changed": "~"}
_SAID: Final = {
    "added": "the settings give it, and it is not there",
    "removed": "it is there, and the settings do not give it",
    "changed": "",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """Which rules are meant: of which settings, narrowed to what, with links to where."""

    config: Path | None
    service: str = ""
    worker: str = ""
    runbooks: str | None = None
    dashboards: str | None = None

    def settings(self) -> Settings:
        """Return the settings."""
        return load_settings(self.config)

    def groups(self, settings: Settings) -> tuple[Group, ...]:
        """Return the rules."""
        links = links_of(settings.alerting, runbooks=self.runbooks, dashboards=self.dashboards)
        return rule_groups(settings.health_monitoring, self.selectors(), links)

    def files(self, settings: Settings) -> dict[str, str]:
        """Return the rule files by name."""
        links = links_of(settings.alerting, runbooks=self.runbooks, dashboards=self.dashboards)
        return rule_files(settings.health_monitoring, self.selectors(), links)

    def selectors(self) -> Selectors:
        """Return what the rules are narrowed to, once it is seen to be matchers of labels."""
        for option, matchers in (("--service-selector", self.service), ("--worker-selector", self.worker)):
            if _MATCHERS.sub("", matchers):
                raise QueenrightError(
                    f"""{option} {matchers!r} is no list of matchers; write it like 'job="x", cluster="y"'."""
                )
        return Selectors(service=self.service.strip().rstrip(","), worker=self.worker.strip().rstrip(","))


def check(asked: Asked, *, as_json: bool) -> int:
    """Check the rules; 1 if Prometheus would not take them, or they ask for what is not there."""
    settings = asked.settings()
    groups = asked.groups(settings)
    faults = check_rules(in_groups(groups))
    promtool = find_program("promtool")
    if promtool is not None:
        faults += _promtool(promtool, asked.files(settings))
    rules = [rule for group in groups for rule in group.rules]
    alerts = sum(isinstance(rule, Alert) for rule in rules)
    if as_json:
        told = {"alerts": alerts, "recorded": len(rules) - alerts, "promtool": promtool is not None}
        typer.echo(json.dumps({**told, "faults": faults}, indent=2))
        return 1 if faults else 0
    for fault in faults:
        typer.echo(fault, err=True)
    by = "promtool and our own checks" if promtool is not None else "our own checks (promtool is not there)"
    verdict = f"{len(faults)} faults found by" if faults else "right, by"
    typer.echo(f"{alerts} alerts and {len(rules) - alerts} recording rules: {verdict} {by}.")
    return 1 if faults else 0


def _promtool(program: Path, files: Mapping[str, str]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        paths = _write(Path(folder), files)
        done = subprocess.run(
            [program, "check", "rules", "--lint=all", "--lint-fatal", *paths],
            text=True,
            capture_output=True,
            timeout=120,
        )
    if done.returncode == 0:
        return []
    lines = (done.stdout + done.stderr).replace(f"{folder}/", "").splitlines()
    return [f"promtool: {line.strip()}" for line in lines if line.strip()]


def export(
    asked: Asked,
    format_: str,
    output: Path,
    place: tuple[str, Sequence[str]],
    service_url: str,
    deadman_url: str | None,
) -> int:
    """Write the rules; see `queenright rules export`."""
    deadman = _deadman(deadman_url)
    settings = asked.settings()
    namespace, labels = place
    where = Place(namespace=namespace, labels=_labels(labels))
    groups = asked.groups(settings)
    if format_ == "prometheus":
        if str(output) == _STDOUT:
            return _print(render(groups, ("Written by `queenright rules export`.",)))
        return _say(output, _write(output, asked.files(settings)))
    if format_ == "prometheusrule":
        text = yaml_text(prometheus_rule(groups, where), comments=["Written by `queenright rules export`."])
        return _print(text) if str(output) == _STDOUT else _say(output, [_write_file(output, text)])
    extras = Extras(dashboards=dashboards_of(settings), provisioning=texts_in(provisioning_folder(), "*.yml"))
    if format_ == "kubernetes":
        if str(output) == _STDOUT:
            raise QueenrightError("a folder for Kustomize does not fit standard output; name one with -o.")
        files = kubernetes_files(
            groups,
            extras,
            where,
            selectors=asked.selectors(),
            service_url=service_url,
            deadman_url=deadman,
        )
        _warn(deadman)
        return _say(output, _write(output, files))
    data = archive(mixin_files(asked.files(settings), extras, service_url=service_url, deadman_url=deadman))
    _warn(deadman)
    if str(output) == _STDOUT:
        sys.stdout.buffer.write(data)
        return 0
    return _say(output, [_write_file(output, data)])


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
        raise QueenrightError(
            "--deadman-url is no address; write it like https://hc-ping.com/5d2f…, as the check gives it."
        )
    return url


def _warn(deadman: str) -> None:
    if said := about_deadman(deadman):
        typer.echo(f"Warning: {' '.join(said)}", err=True)


def diff(asked: Asked, files: Sequence[Path], prometheus: str | None, *, as_json: bool) -> int:
    """Say what differs; 1 if anything does."""
    settings = asked.settings()
    there = in_files(files) if files else in_answer(_loaded(settings, prometheus))
    wanted = in_groups(asked.groups(settings))
    found = compare(wanted, there)
    if as_json:
        typer.echo(json.dumps([_row(one) for one in found], indent=2))
    else:
        for one in found:
            typer.echo(_words(one))
        typer.echo(_sum(found, len(wanted)))
    return 1 if found else 0


def _loaded(settings: Settings, url: str | None) -> Any:
    """Ask a Prometheus which rules it has loaded."""
    from queenright.judge.stack.http import StackAddress, StackClient, StackError
    from queenright.server.secret_files import stack_tokens

    judging = settings.judging
    token = stack_tokens(judging)[0]
    if url is None:
        if judging.prometheus_url is None:
            raise QueenrightError(
                "nothing to compare with: name rule files, or a Prometheus with --prometheus "
                "http://127.0.0.1:9090, or set judging.prometheus_url."
            )
        url = judging.prometheus_url.get_secret_value()
    elif judging.prometheus_url is None or url != judging.prometheus_url.get_secret_value():
        token = None  # it is for the Prometheus of the settings, and nobody else's
    try:
        address = StackAddress.parse(url, token)
    except ValueError as error:
        raise QueenrightError(f"--prometheus {error}") from None

    async def get() -> Any:
        client = StackClient(address)
        try:
            return await client.get("/api/v1/rules", {})
        finally:
            await client.aclose()

    try:
        return asyncio.run(get())
    except StackError as error:
        raise QueenrightError(f"{error}; name a Prometheus that runs with --prometheus.") from None


def _words(one: Difference) -> str:
    rule = one.rule
    labels = ", ".join(f"{name}={value}" for name, value in sorted(rule.labels.items()) if name != "source")
    said = f": {_SAID[one.kind]}" if _SAID[one.kind] else ""
    head = f"{_SIGNS[one.kind]} {rule.name}{f' {{{labels}}}' if labels else ''} in {rule.group}{said}"
    lines = [f"    {change.part}\n      - {change.there}\n      + {change.wanted}" for change in one.changes]
    return "\n".join([head, *lines])


def _sum(found: Sequence[Difference], wanted: int) -> str:
    if not found:
        return f"No difference: all {wanted} rules are there as the settings give them."
    counts = {kind: sum(one.kind == kind for one in found) for kind in _SIGNS}
    told = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    return f"{told}; `queenright rules export` writes the rules as the settings give them."


def _row(one: Difference) -> dict[str, Any]:
    rule = one.rule
    return {
        "kind": one.kind,
        "rule": rule.name,
        "group": rule.group,
        "labels": dict(rule.labels),
        "changes": [asdict(change) for change in one.changes],
    }


def _labels(said: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for label in (part for one in said for part in one.split(",")):
        read = _LABEL.fullmatch(label.strip())
        if read is None:
            raise QueenrightError(
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


def _print(text: str) -> int:
    typer.echo(text, nl=False)
    return 0


def _say(output: Path, written: Sequence[Path]) -> int:
    typer.echo(f"{len(written)} files in {output}" if written != [output] else f"{output}")
    return 0


__all__ = ["Asked", "LoadedRule", "check", "diff", "export"]
