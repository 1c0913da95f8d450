from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from queenright.alerting.__main__ import generated, main
from queenright.alerting.config import render_alertmanager, render_prometheus, render_rules
from queenright.alerting.files import alertmanager_folder, rules_folder, runbook, templates_folder
from queenright.health.settings import HealthSettings
from queenright.server.programs import find_program


def tool(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = find_program(name)
    assert program is not None, f"this test needs the {name} program: `make test` fetches it"
    return subprocess.run([program, *map(str, arguments)], text=True, capture_output=True, timeout=60)


def test_the_committed_files_are_what_the_templates_say() -> None:
    assert main(["--check"]) == 0


def test_a_stale_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "prometheus.yml"
    stale.write_text("old")
    monkeypatch.setattr("queenright.alerting.__main__.generated", lambda: {stale: "new"})

    assert main(["--check"]) == 1
    assert str(stale) in capsys.readouterr().err
    assert main(["--write"]) == 0
    assert stale.read_text() == "new"


def test_alertmanager_takes_the_committed_configuration() -> None:
    done = tool("amtool", "check-config", alertmanager_folder() / "alertmanager.yml")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def rendered(tmp_path: Path) -> Path:
    path = tmp_path / "alertmanager.yml"
    path.write_text(
        render_alertmanager(
            service_url="http://127.0.0.1:8420/",
            # What breaks out of quotes, if anything does.
            slack_api_url_file=tmp_path / 'it\'s a "secret": #1',
            pagerduty_routing_key_file=tmp_path / "key",
            deadman_url="http://127.0.0.1:8421/deadman",
            templates=templates_folder(),
        )
    )
    return path


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ("source=queen severity=critical", "slack-and-pagerduty"),
        ("source=queen severity=warning", "slack"),
        ("source=queen severity=info", "slack"),
        ("source=queen", "slack"),
        ("source=queen severity=critical storm=s1", "pagerduty,slack"),
        ("source=queen severity=warning storm=s1", "slack"),
        ("source=queen severity=info storm=s1", "slack"),
        ("source=queen severity=critical storm=", "slack-and-pagerduty"),
        ("source=rules severity=critical", "judge"),
        ("source=rules severity=info", "judge"),
        ("source=monitor severity=critical", "slack-and-pagerduty"),
        ("source=monitor severity=warning", "slack"),
        ("source=monitor severity=none alertname=QueenrightWatchdog", "deadman"),
        ("alertname=SomebodyElses", "slack"),
    ],
)
def test_every_class_of_alert_has_its_receiver(rendered: Path, labels: str, receiver: str) -> None:
    done = tool("amtool", "config", "routes", "test", f"--config.file={rendered}", *labels.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == receiver


def test_a_path_stays_inside_its_quotes(rendered: Path) -> None:
    config = yaml.safe_load(rendered.read_text())
    assert config["global"]["slack_api_url_file"].endswith('it\'s a "secret": #1')
    assert tool("amtool", "check-config", rendered).returncode == 0


def test_no_secret_is_in_the_text_and_no_group_is_unbounded(rendered: Path) -> None:
    config = yaml.safe_load(rendered.read_text())
    routes = [config["route"]]
    for route in routes:
        routes += route.get("routes", [])
        assert set(route.get("group_by", ())) <= {"alertname", "agent", "cause", "cluster", "storm"}
        assert "match" not in route
        assert "match_re" not in route
    for receiver in config["receivers"]:
        for slack in receiver.get("slack_configs", ()):
            assert slack["send_resolved"]
            assert "api_url" not in slack
        for pagerduty in receiver.get("pagerduty_configs", ()):
            assert pagerduty["send_resolved"]
            assert "routing_key" not in pagerduty


def test_a_storm_is_gathered_for_longer_than_it_takes_to_see_one(rendered: Path) -> None:
    """B71: its first message has all of it, unless somebody chose other waits."""
    [queen] = [
        r for r in yaml.safe_load(rendered.read_text())["route"]["routes"] if "queen" in str(r["matchers"])
    ]
    [storm] = [r for r in queen["routes"] if 'storm!=""' in r["matchers"]]
    window = HealthSettings().intervention.storm.window_seconds

    assert queen["routes"][0] is storm
    assert storm["group_by"] == ["alertname", "storm", "cluster"]
    assert int(storm["group_wait"].removesuffix("s")) > window
    assert storm["group_interval"] == "5m"


@pytest.mark.parametrize("alertmanager", [None, "http://127.0.0.1:9093", ["https://a/am", "http://b:9093"]])
def test_prometheus_takes_its_configuration(tmp_path: Path, alertmanager: str | list[str] | None) -> None:
    path = tmp_path / "prometheus.yml"
    path.write_text(
        render_prometheus(
            service_url="http://127.0.0.1:8420",
            alertmanager_url=alertmanager,
            rules=rules_folder(),
            interval="1s",
            cluster="it's",
            workers=["127.0.0.1:9100"],
        )
    )

    done = tool("promtool", "check", "config", path)
    assert done.returncode == 0, done.stdout + done.stderr
    config = yaml.safe_load(path.read_text())
    assert config["global"]["external_labels"] == {"cluster": "it's"}
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert jobs == {"queenright": ["127.0.0.1:8420"], "queenright-workers": ["127.0.0.1:9100"]}


def test_the_runbooks_address_can_be_moved() -> None:
    text = (rules_folder() / "agents.yml").read_text()
    moved = render_rules(text, "https://wiki.example/runbooks/")
    assert "127.0.0.1:8420" not in moved
    assert "https://wiki.example/runbooks/QueenrightLoop'" in moved


def test_runbooks_are_found_by_name_and_nothing_else_is() -> None:
    assert (runbook("QueenrightLoop") or "").startswith("# QueenrightLoop")
    assert runbook("QueenrightNothing") is None
    assert runbook("../README") is None


def test_everything_generated_is_committed() -> None:
    assert {path.name for path in generated()} == {"alertmanager.yml", "prometheus.yml"}
