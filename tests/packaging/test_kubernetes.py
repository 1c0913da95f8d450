"""The service's Kubernetes file matches the command line, the settings and the exported monitors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from queenright.alerting.export.extra_files import Extras
from queenright.alerting.export.kubernetes import Placement, kubernetes_files
from queenright.alerting.rules import Selectors, rule_groups
from queenright.cli.app import app
from queenright.health.settings import HealthSettings
from queenright.server.settings import load_settings

FILE = Path(__file__).parents[2] / "compose" / "kubernetes.yaml"
OBJECTS: dict[str, Any] = {document["kind"]: document for document in yaml.safe_load_all(FILE.read_text())}
POD = OBJECTS["Deployment"]["spec"]["template"]
[CONTAINER] = POD["spec"]["containers"]


@pytest.fixture(scope="module")
def exported_monitors() -> dict[str, Any]:
    files = kubernetes_files(
        rule_groups(HealthSettings()),
        Extras(dashboards={}),
        Placement(),
        selectors=Selectors(),
        service_url="http://queenright:8420",
    )
    return {name: yaml.safe_load(text) for name, text in files.items() if name.endswith("monitor.yaml")}


def test_command_is_known_and_its_settings_are_valid(tmp_path: Path) -> None:
    command: Any = typer.main.get_command(app)
    _, command_name, *words = CONTAINER["command"]
    config = command.commands[command_name].make_context(command_name, words).params["config"]
    [(name, text)] = OBJECTS["ConfigMap"]["data"].items()
    [mount] = [
        document["mountPath"] for document in CONTAINER["volumeMounts"] if document["name"] == "settings"
    ]
    (tmp_path / name).write_text(text)

    settings = load_settings(tmp_path / name)

    assert str(config) == f"{mount}/{name}"
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert ports == {"http": settings.http.port, "otlp": settings.otlp.port}
    assert str(settings.storage) in [document["mountPath"] for document in CONTAINER["volumeMounts"]]


def test_exported_monitor_selects_the_service(exported_monitors: dict[str, Any]) -> None:
    monitor = exported_monitors["servicemonitor.yaml"]["spec"]
    service = OBJECTS["Service"]

    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert service["spec"]["selector"].items() <= POD["metadata"]["labels"].items()


def test_scraped_workers_may_reach_the_service(exported_monitors: dict[str, Any]) -> None:
    pod_selector = exported_monitors["podmonitor.yaml"]["spec"]["selector"]
    [workers] = [rule for rule in OBJECTS["NetworkPolicy"]["spec"]["ingress"] if len(rule["ports"]) == 2]

    assert workers["from"][0]["podSelector"] == pod_selector


def test_pod_has_the_stop_timeout_of_the_compose_file() -> None:
    compose = yaml.safe_load((FILE.parents[1] / "docker-compose.yml").read_text())
    grace = compose["services"]["queenright"]["stop_grace_period"]

    assert f"{POD['spec']['terminationGracePeriodSeconds']}s" == grace


def test_update_stops_the_old_pod_first_and_pods_do_not_run_as_root() -> None:
    spec = OBJECTS["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert POD["spec"]["securityContext"]["runAsNonRoot"] is True
    # By default, each mount adds group permissions to the audit key, and the service then refuses the key.
    assert POD["spec"]["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] is True
    volumes = {volume["name"] for volume in POD["spec"]["volumes"]}
    assert volumes == {mount["name"] for mount in CONTAINER["volumeMounts"]}
