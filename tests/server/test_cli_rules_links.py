"""The links in an export: their URLs, and a warning for each link to the local machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from queenright.alerting.export.addresses import is_local_url
from queenright.cli.app import app
from queenright.instrumentation.errors import QueenrightError

LOCAL_URL = re.compile(r"https?://(?:127\.|localhost|\[::1\])[^\s\"']*")


@pytest.fixture(autouse=True)
def _run_in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def export_rules(*arguments: str, format_: str = "kubernetes") -> tuple[Result, str]:
    """Export rules, and return the result and the text of all written files."""
    result = CliRunner().invoke(app, ["rules", "export", "--format", format_, "-o", "out", *arguments])
    if isinstance(result.exception, QueenrightError):
        raise result.exception
    output_folder = Path("out")
    files = (
        [output_folder]
        if output_folder.is_file()
        else sorted(path for path in output_folder.rglob("*") if path.is_file())
    )
    return result, "".join(path.read_text("utf-8", "replace") for path in files)


GRAFANA_OPTIONS = ("--dashboards", "https://grafana.example/d")


def test_service_url_leaves_no_link_to_this_machine() -> None:
    result, exported = export_rules("--service-url", "http://queenright.agents:8420/", *GRAFANA_OPTIONS)

    assert LOCAL_URL.findall(exported) == []
    assert "http://queenright.agents:8420/runbooks/QueenrightLoop" in exported
    assert '"query": "http://queenright.agents:8420"' in exported
    assert "link to their" not in result.stderr
    assert "127.0.0.1" not in result.stderr


def test_settings_and_options_override_the_service_url() -> None:
    Path("queenright.yaml").write_text("alerting: {console_url: https://q.example}\n")
    _, exported = export_rules("--service-url", "http://queenright.agents:8420", *GRAFANA_OPTIONS)
    assert "https://q.example/runbooks/QueenrightLoop" in exported
    assert '"query": "https://q.example"' in exported
    assert "http://queenright.agents:8420/api/" in exported

    _, exported = export_rules(
        "--service-url", "http://queenright.agents:8420", "--runbooks", "https://w.example/r"
    )
    assert "https://w.example/r/QueenrightLoop" in exported


@pytest.mark.parametrize(
    ("http", "url"),
    [
        ("{port: 9999}", "http://127.0.0.1:9999"),
        ("{host: 10.1.2.3, port: 9999}", "http://10.1.2.3:9999"),
        ("{host: 0.0.0.0, port: 9999}", "http://127.0.0.1:9999"),
        ('{host: "::1", port: 9999}', "http://[::1]:9999"),
    ],
)
def test_links_use_the_configured_listen_address(http: str, url: str) -> None:
    Path("queenright.yaml").write_text(f"http: {http}\n")
    _, exported = export_rules(*GRAFANA_OPTIONS, format_="prometheus")
    assert f"{url}/runbooks/QueenrightLoop" in exported
    assert "8420" not in exported

    _, exported = export_rules("--service-url", "http://queenright.agents:8420", *GRAFANA_OPTIONS)
    assert "http://queenright.agents:8420/runbooks/QueenrightLoop" in exported


def test_dashboards_use_the_configured_listen_address() -> None:
    Path("queenright.yaml").write_text("http: {port: 9999}\n")
    result = CliRunner().invoke(app, ["dashboards", "export", "-o", "boards"])
    assert result.exit_code == 0, result.output
    exported = "".join(path.read_text("utf-8") for path in Path("boards").rglob("*.json"))
    assert '"query": "http://127.0.0.1:9999"' in exported
    assert "8420" not in exported


def test_links_do_not_contain_the_credentials_of_the_service_url() -> None:
    _, exported = export_rules("--service-url", "http://me:hunter2@queenright.agents:8420", *GRAFANA_OPTIONS)
    assert "http://queenright.agents:8420/runbooks/" in exported
    assert "hunter2" not in "".join(re.findall(r".*(?:runbooks/|\"query\").*", exported))


@pytest.mark.parametrize(
    ("format_", "expected_options"),
    [
        ("kubernetes", ("--runbooks", "--service-url", "--dashboards", "alerting.console_url")),
        ("mixin", ("--runbooks", "--service-url", "--dashboards", "alerting.console_url")),
        ("prometheusrule", ("--runbooks",)),
        ("prometheus", ("--runbooks",)),
    ],
)
def test_each_local_link_is_reported_with_the_option_that_changes_it(
    format_: str, expected_options: tuple[str, ...]
) -> None:
    result, _ = export_rules(format_=format_)

    assert result.exit_code == 0
    assert all(option in result.stderr for option in expected_options)
    assert "http://127.0.0.1:8420/runbooks" in result.stderr
    assert all(line.startswith("Warning: ") for line in result.stderr.splitlines())


def test_local_urls_of_service_and_grafana_are_reported() -> None:
    arguments = ("--service-url", "http://localhost:8420", "--dashboards", "http://127.0.0.1:3000/d")
    output = export_rules(*arguments)[0].stderr
    assert "Alertmanager" in output
    assert "http://127.0.0.1:3000/d" in output


def test_rules_exported_with_a_service_url_are_compared_with_it() -> None:
    arguments = ("--service-url", "http://queenright.agents:8420")
    export_rules(*arguments)
    assert CliRunner().invoke(app, ["rules", "diff", "out", *arguments]).exit_code == 0
    assert CliRunner().invoke(app, ["rules", "diff", "out"]).exit_code == 1


@pytest.mark.parametrize("url", ["queenright:8420", "ftp://q", "http://"])
def test_invalid_service_url_is_refused(url: str) -> None:
    with pytest.raises(QueenrightError, match="--service-url needs"):
        export_rules("--service-url", url)


@pytest.mark.parametrize(
    ("url", "is_local"),
    [
        ("http://127.0.0.1:8420", True),
        ("http://127.8.8.8", True),
        ("http://LOCALHOST./x", True),
        ("http://grafana.localhost:3000", True),
        ("http://[::1]:3000/d", True),
        ("http://0.0.0.0:3000", True),
        ("https://q.example", False),
        ("http://10.0.0.1", False),
        ("", False),
    ],
)
def test_local_addresses_are_recognised(url: str, is_local: bool) -> None:
    assert is_local_url(url) is is_local
