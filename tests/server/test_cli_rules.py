"""`queenright rules` and `queenright dashboards`, run in this process."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from queenright.alerting.rules import rule_files
from queenright.cli.app import app
from queenright.grafana.export import render_dashboards
from queenright.health.settings import HealthSettings
from queenright.instrumentation.errors import QueenrightError
from queenright.server.settings import load_settings
from queenright.server.up_programs import write_rules
from tests.unpacked import unpack
from tools.dashboards.boards import dashboards

ROOT = Path(__file__).parents[2]
SLOWER_SETTINGS = (
    "health_monitoring: {stall: {unknown_seconds: 1200}}\nalerting: {console_url: https://q.example}\n"
)

REDRAWN_SETTINGS = HealthSettings.model_validate(
    {"stall": {"unknown_seconds": 1200}, "rules": {"bad_steps": {"error_budget": 0.3}}}
)
"""The settings that the fixture ``redrawn`` writes."""


@pytest.fixture(autouse=True)
def _run_in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder without settings, so that only the settings that a test passes apply."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def redrawn(tmp_path: Path) -> str:
    """Write settings that also change a line in the dashboards, and return the path."""
    file = tmp_path / "redrawn.yaml"
    file.write_text(SLOWER_SETTINGS.replace("1200}", "1200}, rules: {bad_steps: {error_budget: 0.3}}"))
    return str(file)


@pytest.fixture
def slower(tmp_path: Path) -> str:
    file = tmp_path / "slower.yaml"
    file.write_text(SLOWER_SETTINGS)
    return str(file)


def queenright(*arguments: str) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


# rules check


def test_shipped_rules_are_valid() -> None:
    result = queenright("rules", "check")

    assert result.exit_code == 0, result.output
    assert "promtool" in result.stdout


def test_rules_with_other_thresholds_and_selectors_are_valid(slower: str) -> None:
    arguments = ("--service-selector", 'job="hive"', "--worker-selector", 'namespace=~"a|b", job="x"')
    result = queenright("rules", "check", "-c", slower, *arguments, "--json")

    assert result.exit_code == 0, result.output
    output = json.loads(result.stdout)
    assert output["faults"] == []
    assert output["promtool"] is True
    table = (ROOT / "docs" / "alerts.md").read_text()
    alert_names = re.findall(r"^\| \[`(Queenright\w+)`\]", table, re.MULTILINE)
    assert (output["alerts"], output["alert_rules"]) == (len(set(alert_names)), len(alert_names))


def test_check_counts_alerts_by_name_and_by_rule() -> None:
    output = queenright("rules", "check").stdout
    match = re.match(r"(\d+) alerts in (\d+) rules, and (\d+) recording rules: valid", output)
    assert match is not None, output
    assert int(match[1]) < int(match[2])


def test_missing_promtool_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queenright.cli.jobs.rules.find_program", lambda name: None)
    result = queenright("rules", "check")

    assert result.exit_code == 0
    assert "promtool is not installed" in result.stdout


def test_promtool_output_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "queenright.cli.jobs.rules.rule_files",
        lambda *_: {"x.yml": "groups: [{name: x, rules: [{record: y, expr: 'sum('}]}]"},
    )
    result = queenright("rules", "check")

    assert result.exit_code == 1
    assert "promtool: " in result.stderr
    assert "x.yml" in result.stderr


@pytest.mark.parametrize("matchers", ['job="x', "job=x", "x", '{job="x"}', 'job="x"} or vector(1'])
def test_invalid_selector_is_refused(matchers: str) -> None:
    with pytest.raises(QueenrightError, match=r"--service-selector: .* write it like"):
        queenright("rules", "check", "--service-selector", matchers)


@pytest.mark.parametrize(
    ("option", "matchers", "expected"),
    [
        ("--service-selector", '__name__="x"', "select the metrics themselves"),
        ("--service-selector", 'agent="x"', "a label of Queenright's metrics"),
        ("--worker-selector", 'job=""', "nothing would match"),
    ],
)
def test_selector_that_prometheus_rejects_writes_nothing(
    tmp_path: Path, option: str, matchers: str, expected: str
) -> None:
    with pytest.raises(QueenrightError, match=expected):
        queenright("rules", "export", "-o", str(tmp_path / "out"), option, matchers)
    assert not (tmp_path / "out").exists()


def test_selector_in_single_quotes_is_accepted() -> None:
    exported = queenright("rules", "export", "-o", "-", "--service-selector", "job='hive'").stdout
    assert "up{job='hive'} == 0" in exported


@pytest.mark.parametrize("format_", ["prometheus", "prometheusrule", "kubernetes", "mixin"])
def test_promtool_checks_rules_before_any_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    monkeypatch.setattr(
        "queenright.cli.jobs.rules.rule_files",
        lambda *_: {"x.yml": "groups: [{name: x, rules: [{record: y, expr: 'sum('}]}]"},
    )
    with pytest.raises(QueenrightError, match=r"(?s)nothing was written.*x\.yml"):
        queenright("rules", "export", "--format", format_, "-o", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


# rules export


def test_exported_rule_files_follow_the_settings(tmp_path: Path, slower: str) -> None:
    result = queenright("rules", "export", "-c", slower, "-o", str(tmp_path / "out"))

    assert result.exit_code == 0, result.output
    contents = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert contents.keys() == rule_files(HealthSettings()).keys()
    assert ">= 1200" in contents["agents.yml"]
    assert "https://q.example/runbooks/QueenrightLoop" in contents["agents.yml"]


def test_links_and_selectors_follow_the_options(tmp_path: Path) -> None:
    links = ("--runbooks", "https://w.example/rb", "--dashboards", "https://g.example/d")
    selectors = ("--service-selector", 'job="hive"', "--worker-selector", 'tier="gold"')
    result = queenright("rules", "export", "-o", "-", *links, *selectors)

    exported = result.stdout
    document = yaml.safe_load(exported)
    all_annotations = [
        rule["annotations"] for group in document["groups"] for rule in group["rules"] if "alert" in rule
    ]
    assert all(
        annotation["runbook_url"].startswith("https://w.example/rb/Queenright")
        for annotation in all_annotations
    )
    assert all(
        annotation["dashboard_url"].startswith("https://g.example/d/queenright-")
        for annotation in all_annotations
    )
    assert 'up{job="hive"} == 0' in exported
    assert 'queenright_worker_steps_total{tier="gold"}' in exported


def test_kubernetes_export_is_one_document_on_standard_output() -> None:
    arguments = (
        "--format",
        "prometheusrule",
        "--namespace",
        "monitoring",
        "--labels",
        "release=prometheus,a=b",
    )
    result = queenright("rules", "export", *arguments, "-o", "-")

    document = yaml.safe_load(result.stdout)
    assert document["kind"] == "PrometheusRule"
    assert document["metadata"]["namespace"] == "monitoring"
    assert {"release": "prometheus", "a": "b"}.items() <= document["metadata"]["labels"].items()


def test_archive_is_reproducible(tmp_path: Path) -> None:
    for name in ("one.tar.gz", "two.tar.gz"):
        result = queenright("rules", "export", "--format", "mixin", "-o", str(tmp_path / name))
        assert result.exit_code == 0, result.output
    data = (tmp_path / "one.tar.gz").read_bytes()
    assert data == (tmp_path / "two.tar.gz").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert "queenright-mixin/README.md" in tar.getnames()


def test_kubernetes_folder_has_the_files_of_its_kustomization(tmp_path: Path) -> None:
    result = queenright("rules", "export", "--format", "kubernetes", "-o", str(tmp_path / "k"))

    assert result.exit_code == 0, result.output
    resources = yaml.safe_load((tmp_path / "k" / "kustomization.yaml").read_text())["resources"]
    assert all((tmp_path / "k" / name).is_file() for name in resources)


@pytest.mark.parametrize(
    ("arguments", "expected_error"),
    [
        (("--format", "kubernetes", "-o", "-"), "not standard output"),
        (("--format", "prometheusrule", "--labels", "a b=c", "-o", "-"), "not a Kubernetes label"),
        (("--format", "prometheusrule", "--labels", "ab", "-o", "-"), "such as release=prometheus"),
        (("-o", "/proc/none/x"), "cannot write /proc/none/x"),
    ],
)
def test_failed_export_has_a_reason(arguments: tuple[str, ...], expected_error: str) -> None:
    with pytest.raises(QueenrightError, match=expected_error):
        queenright("rules", "export", *arguments)


# rules diff


def test_exported_rules_are_unchanged_until_the_settings_change(tmp_path: Path, slower: str) -> None:
    folder = str(tmp_path / "out")
    queenright("rules", "export", "-o", folder)

    equal_result = queenright("rules", "diff", folder)
    assert (equal_result.exit_code, equal_result.stdout[:14]) == (0, "No difference:")
    changed_result = queenright(
        "rules", "diff", folder, "-c", slower, "--runbooks", "http://127.0.0.1:8420/runbooks"
    )
    assert changed_result.exit_code == 1
    assert "~ QueenrightWorkerStalled {severity=critical} in queenright-agents" in changed_result.stdout
    assert changed_result.stdout.splitlines()[-1].startswith("2 changed; ")


def test_differences_are_available_as_json(tmp_path: Path) -> None:
    file = tmp_path / "rules.yml"
    file.write_text("groups: [{name: queenright-x, rules: [{alert: QueenrightOld, expr: vector(1)}]}]")
    result = queenright("rules", "diff", str(file), "--json")

    assert result.exit_code == 1
    rows = json.loads(result.stdout)
    assert {row["kind"] for row in rows} == {"added", "removed"}
    assert [row["rule"] for row in rows if row["kind"] == "removed"] == ["QueenrightOld"]


def test_diff_without_a_source_names_the_options_to_use() -> None:
    result = queenright("rules", "diff")
    assert result.exit_code == 2
    assert "--prometheus" in result.stderr


def test_unreachable_prometheus_is_named_without_its_credentials() -> None:
    result = queenright("rules", "diff", "--prometheus", "http://me:hunter2@127.0.0.1:1")
    assert result.exit_code == 2
    assert "--prometheus" in result.stderr
    assert "hunter2" not in result.output


@pytest.mark.parametrize("url", ["ftp://x", "nowhere", "http://"])
def test_invalid_address_is_refused(url: str) -> None:
    result = queenright("rules", "diff", "--prometheus", url)
    assert result.exit_code == 2
    assert "--prometheus" in result.stderr


@pytest.mark.parametrize("arguments", [("none.yml",), ("none",), (".",), (".", "--service-selector", "x")])
def test_rules_that_cannot_be_compared_are_an_error_and_not_a_difference(arguments: tuple[str, ...]) -> None:
    result = queenright("rules", "diff", *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("queenright: ")


def test_duplicate_rules_are_reported_in_one_line(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        queenright("rules", "export", "-o", str(tmp_path / folder))
    result = queenright("rules", "diff", str(tmp_path / "one"), str(tmp_path / "two"))

    assert result.exit_code == 1
    assert "from the settings" not in result.stdout
    copies, total = result.stdout.splitlines()
    assert re.match(r"= \d\d+ rules, .+ loaded twice \(again in .*two/agents.yml", copies)
    assert re.fullmatch(r"\d+ duplicate; no other difference.", total)


def test_changed_thresholds_are_listed(tmp_path: Path, slower: str) -> None:
    runbooks = ("--runbooks", "https://w.example")
    queenright("rules", "export", "-o", str(tmp_path / "one"), *runbooks)
    queenright("rules", "export", "-o", str(tmp_path / "two"), "-c", slower, *runbooks)
    output = queenright("rules", "diff", str(tmp_path / "one"), str(tmp_path / "two"), *runbooks).stdout

    assert "= QueenrightWorkerStalled {severity=critical} in queenright-agents: duplicate" in output
    assert ">= 1200" in output


def test_diff_of_files_and_a_prometheus_is_a_usage_error(tmp_path: Path) -> None:
    assert queenright("rules", "diff", str(tmp_path), "--prometheus", "http://x").exit_code == 2


# dashboards


def test_exported_dashboards_have_the_configured_thresholds(tmp_path: Path, redrawn: str) -> None:
    result = queenright("dashboards", "export", "-c", redrawn, "-o", str(tmp_path / "d"))

    assert result.exit_code == 0, result.output
    contents = {path.name: path.read_text() for path in (tmp_path / "d").iterdir()}
    assert contents == dashboards(REDRAWN_SETTINGS, console="https://q.example")
    assert queenright("dashboards", "check", str(tmp_path / "d"), "-c", redrawn).exit_code == 0
    check_result = queenright("dashboards", "check", str(tmp_path / "d"))
    assert check_result.exit_code == 1
    assert "agent.json is outdated" in check_result.stderr


@pytest.mark.parametrize("format_", ["kubernetes", "mixin"])
def test_full_exports_have_the_configured_thresholds(redrawn: str, tmp_path: Path, format_: str) -> None:
    output_folder = tmp_path / "out"
    result = queenright("rules", "export", "--format", format_, "-c", redrawn, "-o", str(output_folder))

    assert result.exit_code == 0, result.output
    if format_ == "kubernetes":
        assert ">= 1200" in (output_folder / "prometheusrule.yaml").read_text()
        assert (output_folder / "dashboards" / "agent.yaml").is_file()
        return
    unpack(output_folder, tmp_path)
    mixin = tmp_path / "queenright-mixin"
    assert ">= 1200" in (mixin / "prometheus" / "rules" / "agents.yml").read_text()
    boards = {path.name: path.read_text() for path in (mixin / "grafana" / "dashboards").iterdir()}
    assert boards == render_dashboards(REDRAWN_SETTINGS, console="https://q.example")


def test_commands_of_the_adopting_page_work(tmp_path: Path) -> None:
    """The commands run in the order of the page, in one folder."""
    page = (ROOT / "docs" / "adopting.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = [
        line for line in "\n".join(blocks).replace("\\\n", " ").splitlines() if line.startswith("queenright ")
    ]
    Path("queenright.yaml").write_text(SLOWER_SETTINGS)
    assert len(lines) >= 8
    for line in lines:
        arguments = shlex.split(line, comments=True)[1:]
        if "--prometheus" in arguments:  # Another test runs this command on a real Prometheus.
            continue
        result = queenright(*arguments)
        assert result.exit_code == 0, f"{line}: {result.output}"


def test_command_line_imports_yaml_and_pydantic_only_when_needed() -> None:
    """The packages for rules and dashboards are imported when their command runs."""
    code = "import sys, queenright.cli.app; print([m for m in ('yaml', 'pydantic') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert result.stdout.strip() == "[]"


def test_rules_that_up_writes_equal_the_exported_rules(tmp_path: Path, slower: str) -> None:
    for config in (None, slower):
        settings = load_settings(Path(config) if config else None)
        arguments = ("-c", config) if config else ()
        rules_files = write_rules(tmp_path / "rules", settings)
        assert queenright("rules", "diff", str(rules_files), *arguments).exit_code == 0
