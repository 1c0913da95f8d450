"""`queenright rules`: check and compare the Prometheus rules."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import typer

from queenright.alerting.export.addresses import with_service_url
from queenright.alerting.export.check import check_rules
from queenright.alerting.export.compare import Difference, compare
from queenright.alerting.export.links import rule_links
from queenright.alerting.export.loaded_rules import (
    LoadedRule,
    parse_rule_groups,
    parse_rules_response,
    read_rule_files,
)
from queenright.alerting.export.matchers import InvalidMatchersError, Scope, read_matchers
from queenright.alerting.rules import Alert, Group, Links, Selectors, rule_files, rule_groups
from queenright.cli.errors import UsageError
from queenright.cli.options import RuleOptions
from queenright.cli.output.progress import progress_bar
from queenright.instrumentation.errors import QueenrightError
from queenright.server.ops.programs import find_program
from queenright.server.settings import Settings, load_settings

_SIGNS: Final = {"added": "+", "removed": "-", "changed": "~", "duplicate": "="}
_EXPLANATIONS: Final = {
    "added": "missing",
    "removed": "not in the settings",
    "changed": "",
    "duplicate": "duplicate that differs from the settings",
}


@dataclass(frozen=True, slots=True)
class RuleSelection:
    """
    The rules generated from the settings.

    Args:
        options: Options of the command line.
    """

    options: RuleOptions

    def load_settings(self) -> Settings:
        """Return the settings, with ``service_url`` as the console's URL unless they set one."""
        settings = load_settings(self.options.config)
        try:
            alerting = with_service_url(settings.alerting, self.options.service_url)
        except ValueError as error:
            raise UsageError(f"--service-url {error}") from None
        return settings.model_copy(update={"alerting": alerting}).with_console_url()

    def make_links(self, settings: Settings) -> Links:
        """Return the targets of links in alerts."""
        return rule_links(
            settings.alerting, runbooks=self.options.runbooks, dashboards=self.options.dashboards
        )

    def make_groups(self, settings: Settings) -> tuple[Group, ...]:
        """Return the rules."""
        return rule_groups(settings.health_monitoring, self.make_selectors(), self.make_links(settings))

    def render_files(self, settings: Settings) -> dict[str, str]:
        """Return the rule files by name."""
        return rule_files(settings.health_monitoring, self.make_selectors(), self.make_links(settings))

    def make_selectors(self) -> Selectors:
        """Return the label selectors, after checking their syntax."""
        matchers: dict[Scope, str] = {}
        texts: dict[Scope, str] = {
            "service": self.options.service_selector,
            "worker": self.options.worker_selector,
        }
        for scope, text in texts.items():
            try:
                matchers[scope] = read_matchers(text, scope)
            except InvalidMatchersError as error:
                raise UsageError(f"--{scope}-selector: {error}") from None
        return Selectors(**matchers)


def check(selection: RuleSelection, *, as_json: bool) -> int:
    """Check the rules; return 1 on errors."""
    settings = selection.load_settings()
    groups = selection.make_groups(settings)
    faults = check_rules(parse_rule_groups(groups))
    promtool = find_program("promtool")
    if promtool is not None:
        faults += run_promtool(promtool, selection.render_files(settings))
    rules = [rule for group in groups for rule in group.rules]
    alerts = [rule.name for rule in rules if isinstance(rule, Alert)]
    alert_count, record_count = len(set(alerts)), len(rules) - len(alerts)
    if as_json:
        counts = {"alerts": alert_count, "alert_rules": len(alerts), "recorded": record_count}
        counts["promtool"] = promtool is not None
        typer.echo(json.dumps({**counts, "faults": faults}, indent=2))
        return 1 if faults else 0
    for fault in faults:
        typer.echo(fault, err=True)
    checks = (
        "promtool and built-in checks"
        if promtool is not None
        else "built-in checks (promtool is not installed)"
    )
    verdict = f"{len(faults)} error{'s' * (len(faults) > 1)} found by" if faults else "valid according to"
    typer.echo(
        f"{alert_count} alerts in {len(alerts)} rules, and {record_count} recording rules: "
        f"{verdict} {checks}."
    )
    return 1 if faults else 0


def run_promtool(program: Path, files: Mapping[str, str]) -> list[str]:
    """Run promtool on rule files, given by name. Return the errors that it reports."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in files]
        for path in paths:
            path.write_text(files[path.name], encoding="utf-8")
        process = subprocess.run(
            [program, "check", "rules", "--lint=all", "--lint-fatal", *paths],
            text=True,
            capture_output=True,
            timeout=120,
        )
    if process.returncode == 0:
        return []
    lines = (process.stdout + process.stderr).replace(f"{folder}/", "").splitlines()
    return [f"promtool: {line.strip()}" for line in lines if line.strip()]


def diff(selection: RuleSelection, files: Sequence[Path], prometheus: str | None, *, as_json: bool) -> int:
    """Print the differences; return 1 if there are any."""
    settings = selection.load_settings()
    with progress_bar("Comparing rules", is_counted=False):
        existing = (
            read_rule_files(files) if files else parse_rules_response(_fetch_rules(settings, prometheus))
        )
        own_rules = parse_rule_groups(selection.make_groups(settings))
        differences = compare(own_rules, existing)
    if as_json:
        typer.echo(json.dumps([_to_row(difference) for difference in differences], indent=2))
    else:
        copies = [
            difference
            for difference in differences
            if difference.kind == "duplicate" and not difference.changes
        ]
        for difference in differences:
            if difference not in copies:
                typer.echo(_describe_difference(difference))
        if copies:
            typer.echo(_describe_copies([copy.rule for copy in copies]))
        typer.echo(_summarize_differences(differences, len(own_rules)))
    return 1 if differences else 0


def _fetch_rules(settings: Settings, url: str | None) -> Any:
    """Return the rules that a Prometheus has loaded, as decoded JSON of its API."""
    from queenright.judge.stack.http import StackAddress, StackClient, StackError
    from queenright.server.ops.secret_files import read_stack_tokens

    judging = settings.judging
    token = read_stack_tokens(judging)[0]
    if url is None:
        if judging.prometheus_url is None:
            raise QueenrightError(
                "nothing to compare with: pass rule files, or a Prometheus with --prometheus "
                "http://127.0.0.1:9090, or set judging.prometheus_url."
            )
        url = judging.prometheus_url.get_secret_value()
    elif judging.prometheus_url is None or url != judging.prometheus_url.get_secret_value():
        token = None  # the token is for the Prometheus of the settings only
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
        raise QueenrightError(f"{error}; pass a running Prometheus with --prometheus.") from None


def _describe_difference(difference: Difference) -> str:
    rule = difference.rule
    labels = ", ".join(f"{name}={value}" for name, value in sorted(rule.labels.items()) if name != "source")
    reason = f": {_EXPLANATIONS[difference.kind]}" if _EXPLANATIONS[difference.kind] else ""
    head = (
        f"{_SIGNS[difference.kind]} {rule.name}{f' {{{labels}}}' if labels else ''} in {rule.group}{reason}"
    )
    lines = [
        f"    {change.part}\n      - {change.existing}\n      + {change.wanted}"
        for change in difference.changes
    ]
    return "\n".join([head, *lines])


def _describe_copies(rules: Sequence[LoadedRule]) -> str:
    """Describe exact duplicates in one sentence: they usually come from one file that is loaded twice."""
    first = rules[0].name if len(rules) == 1 else f"{len(rules)} rules, {rules[0].name} first,"
    files = ", ".join(dict.fromkeys(rule.file for rule in rules if rule.file))
    repetition = f" (again in {files})" if files else ""
    verb = "is" if len(rules) == 1 else "are"
    return f"= {first} {verb} loaded twice{repetition}: remove one of the sources"


def _summarize_differences(differences: Sequence[Difference], own_rules: int) -> str:
    if not differences:
        return f"No difference: all {own_rules} rules match the settings."
    counts = {kind: sum(difference.kind == kind for difference in differences) for kind in _SIGNS}
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    if counts["duplicate"] == len(differences):
        return f"{summary}; no other difference."
    return f"{summary}; `queenright rules export` writes the rules generated from the settings."


def _to_row(difference: Difference) -> dict[str, Any]:
    rule = difference.rule
    return {
        "kind": difference.kind,
        "rule": rule.name,
        "group": rule.group,
        "labels": dict(rule.labels),
        "changes": [asdict(change) for change in difference.changes],
    }
