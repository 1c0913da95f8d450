"""compose/cluster.yaml is valid, pinned, and consistent with docker-compose.yml."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
import yaml

from queenright.server.settings import load_settings
from tests.packaging.test_compose import COMPOSE, ROOT, list_mounts, run_config_check

FILE = ROOT / "compose" / "cluster.yaml"
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(FILE.read_text())["services"]
SINGLE_SERVICE: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]["queenright"]
PROCESSES = ("queenright", "queenright-2")


def test_file_is_valid() -> None:
    run_config_check(
        sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", FILE
    )


def test_second_process_is_like_the_first() -> None:
    different_keys = {"build", "environment", "volumes", "ports", "networks", "depends_on"}
    second_service = {
        key: value for key, value in SERVICES["queenright-2"].items() if key not in different_keys
    }

    assert second_service == {
        key: value for key, value in SINGLE_SERVICE.items() if key not in different_keys
    }
    assert list(list_mounts(SERVICES["queenright-2"])) == list(list_mounts(SINGLE_SERVICE))
    assert SERVICES["queenright-2"]["environment"].items() >= SINGLE_SERVICE["environment"].items()
    assert SERVICES["queenright-2"]["depends_on"].items() >= SINGLE_SERVICE["depends_on"].items()


@pytest.mark.parametrize("process", PROCESSES)
def test_process_joins_the_cluster_under_its_own_name(process: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = SERVICES[process]
    for variable, value in service["environment"].items():
        monkeypatch.setenv(variable, value)

    settings = load_settings(ROOT / "compose" / "queenright.yaml")

    names = {process, *service["networks"]["default"]["aliases"]}
    assert settings.cluster.host in names
    assert settings.cluster.nats == "nats://nats:4222"
    assert settings.database is not None
    assert {"nats", "postgres"} <= set(service["depends_on"]) & set(SERVICES)
    assert "queenright" in names, "agents and Alertmanager reach both processes by one name"


def test_engines_are_reachable_only_by_the_processes() -> None:
    document = yaml.safe_load(FILE.read_text())

    assert document["networks"] == {"cluster": {"internal": True}}
    for engine in ("postgres", "nats"):
        assert SERVICES[engine]["networks"] == ["cluster"]
        assert "ports" not in SERVICES[engine]
        assert "healthcheck" in SERVICES[engine]
    users = [name for name, service in SERVICES.items() if "cluster" in service.get("networks", ())]
    assert sorted(users) == ["nats", "postgres", *PROCESSES]


def test_images_are_pinned_and_ports_are_on_loopback() -> None:
    images = [service["image"] for service in SERVICES.values() if "image" in service]

    assert [image for image in images if not re.search(r":\d+\.\d+", image)] == []
    assert SERVICES["queenright-2"]["ports"] == ["127.0.0.1:8421:8420"]


def test_prometheus_scrapes_both_processes() -> None:
    [(config, target)] = list_mounts(SERVICES["prometheus"])
    document = yaml.safe_load(config.read_text())
    expected_document = yaml.safe_load((ROOT / "alerting" / "prometheus" / "prometheus.yml").read_text())
    hosts = [SERVICES[process]["environment"]["QUEENRIGHT_CLUSTER__HOST"] for process in PROCESSES]

    assert target == "/etc/prometheus/prometheus.yml"
    expected_document["scrape_configs"][0]["static_configs"] = [
        {"targets": [f"{host}:8420" for host in hosts]}
    ]
    assert document == expected_document
