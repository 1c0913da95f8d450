"""The files in compose/ are valid in the schema of the Kubernetes API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema_rs import Draft7Validator

from tests.packaging.test_compose import COMPOSE

SCHEMA: dict[str, Any] = json.loads(Path(__file__).with_name("kubernetes.schema.json").read_text("utf-8"))
FILES = ("judge-cronjob.yaml", "kubernetes-cluster.yaml", "kubernetes.yaml")
OBJECTS = [
    pytest.param(manifest, id=f"{name}-{manifest['kind']}")
    for name in FILES
    for manifest in yaml.safe_load_all((COMPOSE.parent / "compose" / name).read_text("utf-8"))
]


def find_problems(manifest: dict[str, Any]) -> list[str]:
    """Return the schema errors of an object, including unknown fields."""
    schema = {
        "$ref": SCHEMA["kinds"][f"{manifest['apiVersion']}/{manifest['kind']}"],
        "$defs": SCHEMA["$defs"],
    }
    return [
        f"{'.'.join(map(str, error.instance_path))}: {error.message}"
        for error in Draft7Validator(schema).iter_errors(manifest)
    ]


def test_unknown_field_is_a_problem() -> None:
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "lables": {}}}

    assert find_problems(manifest) == [
        "metadata: Additional properties are not allowed ('lables' was unexpected)",
    ]


@pytest.mark.parametrize("manifest", OBJECTS)
def test_object_is_valid(manifest: dict[str, Any]) -> None:
    assert find_problems(manifest) == []
