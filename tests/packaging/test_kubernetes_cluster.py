"""The cluster's Kubernetes file differs from the file of one process only where a cluster requires it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from queenright.server.settings import load_settings
from tests.packaging import test_kubernetes as one_process

FILE = one_process.FILE.with_name("kubernetes-cluster.yaml")
OBJECTS: dict[str, Any] = {document["kind"]: document for document in yaml.safe_load_all(FILE.read_text())}
STATEFUL_SET = OBJECTS["StatefulSet"]["spec"]
POD = STATEFUL_SET["template"]
[CONTAINER] = POD["spec"]["containers"]
ENVIRONMENT = {entry["name"]: entry["valueFrom"] for entry in CONTAINER["env"]}


def test_objects_use_current_api_versions() -> None:
    assert {kind: document["apiVersion"] for kind, document in OBJECTS.items()} == {
        "ConfigMap": "v1",
        "Service": "v1",
        "PodDisruptionBudget": "policy/v1",
        "StatefulSet": "apps/v1",
        "NetworkPolicy": "networking.k8s.io/v1",
    }


def test_settings_are_valid_and_use_the_keys_of_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(name, text)] = OBJECTS["ConfigMap"]["data"].items()
    (tmp_path / name).write_text(text)
    values = {"nats": "nats://a:4222,nats://b:4222", "database": "postgresql://queenright@db/queenright"}
    for variable, source in ENVIRONMENT.items():
        secret = source.get("secretKeyRef")
        monkeypatch.setenv(variable, values.pop(secret["key"]) if secret else "10.0.0.7")

    settings = load_settings(tmp_path / name)

    assert values == {}
    assert settings.cluster.nats == "nats://a:4222,nats://b:4222"
    assert settings.cluster.host == "10.0.0.7"
    assert settings.cluster.replicas == 3
    assert str(settings.storage) in [mount["mountPath"] for mount in CONTAINER["volumeMounts"]]


def test_pods_differ_from_one_process_only_by_the_cluster() -> None:
    added_keys = {"env"}
    single = one_process.CONTAINER
    assert {key: value for key, value in CONTAINER.items() if key not in added_keys} == single
    grace = "terminationGracePeriodSeconds"
    assert POD["spec"][grace] == one_process.POD["spec"][grace]
    assert OBJECTS["Service"] == one_process.OBJECTS["Service"]
    *rules, cluster_rule = OBJECTS["NetworkPolicy"]["spec"]["ingress"]
    assert rules == one_process.OBJECTS["NetworkPolicy"]["spec"]["ingress"]
    assert cluster_rule["from"][0]["podSelector"]["matchLabels"] == POD["metadata"]["labels"]
    assert {port["port"] for port in cluster_rule["ports"]} == {port["name"] for port in CONTAINER["ports"]}


def test_two_processes_run_and_one_remains() -> None:
    labels = POD["metadata"]["labels"]
    assert STATEFUL_SET["replicas"] == 2
    assert STATEFUL_SET["serviceName"] == OBJECTS["Service"]["metadata"]["name"]
    assert STATEFUL_SET["selector"]["matchLabels"] == labels
    budget = OBJECTS["PodDisruptionBudget"]["spec"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    [spread] = POD["spec"]["topologySpreadConstraints"]
    assert spread["labelSelector"]["matchLabels"] == labels


def test_each_process_keeps_its_storage_and_pods_do_not_run_as_root() -> None:
    assert [claim["metadata"]["name"] for claim in STATEFUL_SET["volumeClaimTemplates"]] == ["data"]
    volumes = {volume["name"] for volume in POD["spec"]["volumes"]} | {"data"}
    assert volumes == {mount["name"] for mount in CONTAINER["volumeMounts"]}
    assert POD["spec"]["securityContext"] == one_process.POD["spec"]["securityContext"]
