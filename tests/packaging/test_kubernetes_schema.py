"""The Kubernetes API accepts the files in compose/, and their probes get a response."""

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
    pytest.param(one, id=f"{name}-{one['kind']}")
    for name in FILES
    for one in yaml.safe_load_all((COMPOSE.parent / "compose" / name).read_text("utf-8"))
]


def find_problems(one: dict[str, Any]) -> list[str]:
    """Return the schema errors of an object, including unknown fields."""
    schema = {"$ref": SCHEMA["kinds"][f"{one['apiVersion']}/{one['kind']}"], "$defs": SCHEMA["$defs"]}
    return [
        f"{'.'.join(map(str, error.instance_path))}: {error.message}"
        for error in Draft7Validator(schema).iter_errors(one)
    ]


def test_unknown_field_is_a_problem() -> None:
    one = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "lables": {}}}

    assert find_problems(one) == [
        "metadata: Additional properties are not allowed ('lables' was unexpected)",
    ]


@pytest.mark.parametrize("one", OBJECTS)
def test_object_is_valid(one: dict[str, Any]) -> None:
    assert find_problems(one) == []
