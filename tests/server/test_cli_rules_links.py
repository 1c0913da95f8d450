"""Links in an export: their URLs, and a warning for each that points to the reader's own machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from queenright.alerting.export.addresses import is_local_url
from queenright.cli.app import app
from queenright.instrumentation.errors import QueenrightError

HERE = re.compile(r"https?://(?:127\.|localhost|\[::1\])[^\s\"']*")


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def export_rules(*words: str, format_: str = "kubernetes") -> tuple[Result, str]:
    """Return the output of an export, and all text that it wrote."""
    result = CliRunner().invoke(app, ["rules", "export", "--format", format_, "-o", "out", *words])
    if isinstance(result.exception, QueenrightError):
        raise result.exception
    out = Path("out")
    files = [out] if out.is_file() else sorted(path for path in out.rglob("*") if path.is_file())
    return result, "".join(path.read_text("utf-8", "replace") for path in files)


GRAFANA = ("--dashboards", "https://grafana.example/d")


def test_service_url_leaves_no_link_to_this_machine() -> None:
    result, text = export_rules("--service-url", "http://queenright.agents:8420/", *GRAFANA)

    assert HERE.findall(text) == []
    assert "http://queenright.agents:8420/runbooks/QueenrightLoop" in text
    assert '"query": "http://queenright.agents:8420"' in text
    assert "linked at" not in result.stderr
    assert "127.0.0.1" not in result.stderr


def test_settings_and_options_precede_the_service_url() -> None:
    Path("queenright.yaml").write_text("alerting: {console_url: https://q.example}\n")
    _, text = export_rules("--service-url", "http://queenright.agents:8420", *GRAFANA)
    assert "https://q.example/runbooks/QueenrightLoop" in text
    assert '"query": "https://q.example"' in text
    assert "http://queenright.agents:8420/api/" in text

    _, text = export_rules(
        "--service-url", "http://queenright.agents:8420", "--runbooks", "https://w.example/r"
    )
    assert "https://w.example/r/QueenrightLoop" in text


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
    _, text = export_rules(*GRAFANA, format_="prometheus")
    assert f"{url}/runbooks/QueenrightLoop" in text
    assert "8420" not in text

    _, text = export_rules("--service-url", "http://queenright.agents:8420", *GRAFANA)
    assert "http://queenright.agents:8420/runbooks/QueenrightLoop" in text


def test_dashboards_use_the_configured_listen_address() -> None:
    Path("queenright.yaml").write_text("http: {port: 9999}\n")
    result = CliRunner().invoke(app, ["dashboards", "export", "-o", "boards"])
    assert result.exit_code == 0, result.output
    text = "".join(path.read_text("utf-8") for path in Path("boards").rglob("*.json"))
    assert '"query": "http://127.0.0.1:9999"' in text
    assert "8420" not in text


def test_links_do_not_contain_the_login_for_alertmanager() -> None:
    _, text = export_rules("--service-url", "http://me:hunter2@queenright.agents:8420", *GRAFANA)
    assert "http://queenright.agents:8420/runbooks/" in text
    assert "hunter2" not in "".join(re.findall(r".*(?:runbooks/|\"query\").*", text))


@pytest.mark.parametrize(
    ("format_", "named"),
    [
        ("kubernetes", ("--runbooks", "--service-url", "--dashboards", "alerting.console_url")),
        ("mixin", ("--runbooks", "--service-url", "--dashboards", "alerting.console_url")),
        ("prometheusrule", ("--runbooks",)),
        ("prometheus", ("--runbooks",)),
    ],
)
def test_every_local_link_is_reported_with_the_option_that_changes_it(
    format_: str, named: tuple[str, ...]
) -> None:
    result, _ = export_rules(format_=format_)

    assert result.exit_code == 0
    assert all(option in result.stderr for option in named)
    assert "http://127.0.0.1:8420/runbooks" in result.stderr
    assert all(line.startswith("Warning: ") for line in result.stderr.splitlines())


def test_local_service_and_grafana_are_reported() -> None:
    words = ("--service-url", "http://localhost:8420", "--dashboards", "http://127.0.0.1:3000/d")
    output = export_rules(*words)[0].stderr
    assert "Alertmanager" in output
    assert "http://127.0.0.1:3000/d" in output


def test_rules_exported_with_a_service_url_are_compared_with_it() -> None:
    words = ("--service-url", "http://queenright.agents:8420")
    export_rules(*words)
    assert CliRunner().invoke(app, ["rules", "diff", "out", *words]).exit_code == 0
    assert CliRunner().invoke(app, ["rules", "diff", "out"]).exit_code == 1


@pytest.mark.parametrize("url", ["queenright:8420", "ftp://q", "http://"])
def test_invalid_service_url_is_refused(url: str) -> None:
    with pytest.raises(QueenrightError, match="--service-url needs"):
        export_rules("--service-url", url)


@pytest.mark.parametrize(
    ("url", "here"),
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
def test_local_addresses_are_recognised(url: str, here: bool) -> None:
    assert is_local_url(url) is here
