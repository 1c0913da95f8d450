from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from queenright.alerting.config import render_alertmanager, render_prometheus
from queenright.alerting.files import alertmanager_folder, read_runbook, rules_folder, templates_folder
from queenright.health.interventions.storm import WINDOW_SECONDS
from tests.programs import VERSIONS, run
from tools.rules import generated, main


def test_committed_files_match_the_templates() -> None:
    assert main(["--check"]) == 0


def test_stale_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "prometheus.yml"
    stale.write_text("old")
    monkeypatch.setattr("tools.rules.generated", lambda: {stale: "new"})

    assert main(["--check"]) == 1
    assert str(stale) in capsys.readouterr().err
    assert main(["--write"]) == 0
    assert stale.read_text() == "new"


@pytest.mark.parametrize("version", VERSIONS)
def test_committed_configuration_is_valid_for_amtool(version: str) -> None:
    result = run("amtool", "check-config", alertmanager_folder() / "alertmanager.yml", version=version)
    assert result.returncode == 0, result.stderr


@pytest.fixture(params=[False, True], ids=["links", "interactive"])
def rendered_config(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "alertmanager.yml"
    path.write_text(
        render_alertmanager(
            service_url="http://127.0.0.1:8420/",
            # characters that could break out of quotes
            slack_api_url_file=tmp_path / 'it\'s a "secret": #1',
            pagerduty_routing_key_file=tmp_path / "key",
            deadman_url="http://127.0.0.1:8421/deadman",
            templates=templates_folder(),
            slack_interactive=request.param,
        )
    )
    return path


@pytest.mark.parametrize("version", VERSIONS)
def test_path_stays_inside_its_quotes(rendered_config: Path, version: str) -> None:
    config = yaml.safe_load(rendered_config.read_text())
    assert config["global"]["slack_api_url_file"].endswith('it\'s a "secret": #1')
    result = run("amtool", "check-config", rendered_config, version=version)
    assert result.returncode == 0, result.stderr
    assert "1 templates" in result.stdout


def test_rendered_configuration_has_no_secrets_and_bounded_groups(rendered_config: Path) -> None:
    config = yaml.safe_load(rendered_config.read_text())
    routes = [config["route"]]
    for route in routes:
        routes += route.get("routes", [])
        ids = {"ticket_id"} if route.get("receiver") == "pagerduty" else set()
        assert set(route.get("group_by", ())) <= {"alertname", "agent", "cause", "cluster", "storm"} | ids
        assert "match" not in route
        assert "match_re" not in route
    for receiver in config["receivers"]:
        for slack in receiver.get("slack_configs", ()):
            assert slack["send_resolved"]
            assert "api_url" not in slack
        for pagerduty in receiver.get("pagerduty_configs", ()):
            assert pagerduty["send_resolved"]
            assert "routing_key" not in pagerduty
            assert pagerduty["routing_key_file"]


def test_every_receiver_also_reports_to_queenright(rendered_config: Path) -> None:
    """
    This holds for firing and resolved alerts. The dead man's switch gets no resolved message: it would look
    like a sign of life.
    """
    receivers = {
        receiver["name"]: receiver for receiver in yaml.safe_load(rendered_config.read_text())["receivers"]
    }
    url = "http://127.0.0.1:8420/api/alertmanager/notifications"
    webhook = {"url": url, "send_resolved": True, "max_alerts": 100}
    for name, receiver in receivers.items():
        notifies_people = {"slack_configs", "pagerduty_configs"} & receiver.keys()
        assert (webhook in receiver["webhook_configs"]) == bool(notifies_people), name
    [deadman] = receivers["deadman"]["webhook_configs"]
    assert deadman["send_resolved"] is False


def test_receiver_without_tickets_has_no_acknowledge_button(rendered_config: Path) -> None:
    receivers = {
        receiver["name"]: receiver for receiver in yaml.safe_load(rendered_config.read_text())["receivers"]
    }
    for name in ("on-call", "on-call-slack"):
        [slack] = receivers[name]["slack_configs"]
        assert len(slack["actions"]) == 5
        assert all("url" in action and "name" not in action for action in slack["actions"])
    [slack] = receivers["slack"]["slack_configs"]
    has_buttons = "callback_id" in slack
    assert [("name" in action) for action in slack["actions"]] == [
        False,
        has_buttons,
        False,
        False,
        False,
    ]


def test_storm_group_wait_exceeds_storm_detection_time(rendered_config: Path) -> None:
    """B71: with the default waits, the first message has the whole storm."""
    [queen_route] = [
        route
        for route in yaml.safe_load(rendered_config.read_text())["route"]["routes"]
        if "queen" in str(route["matchers"])
    ]
    [storm_route] = [route for route in queen_route["routes"] if 'storm!=""' in route["matchers"]]

    assert queen_route["routes"][0] is storm_route
    assert storm_route["group_by"] == ["alertname", "storm", "cluster"]
    assert int(storm_route["group_wait"].removesuffix("s")) > WINDOW_SECONDS
    assert storm_route["group_interval"] == "5m"


@pytest.mark.parametrize("alertmanager", [None, "http://127.0.0.1:9093", ["https://a/am", "http://b:9093"]])
def test_prometheus_configuration_is_valid(tmp_path: Path, alertmanager: str | list[str] | None) -> None:
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

    result = run("promtool", "check", "config", path)
    assert result.returncode == 0, result.stdout + result.stderr
    config = yaml.safe_load(path.read_text())
    assert config["global"]["external_labels"] == {"cluster": "it's"}
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert jobs == {"queenright": ["127.0.0.1:8420"], "queenright-workers": ["127.0.0.1:9100"]}


def test_only_runbooks_are_found_by_name() -> None:
    assert (read_runbook("QueenrightLoop") or "").startswith("# QueenrightLoop")
    assert read_runbook("QueenrightNothing") is None
    assert read_runbook("../README") is None


def test_all_generated_files_are_committed() -> None:
    rules = {"recording.yml", "agents.yml", "fleet.yml", "monitor.yml"}
    assert {path.name for path in generated()} == rules | {"alertmanager.yml", "prometheus.yml", "alerts.md"}
