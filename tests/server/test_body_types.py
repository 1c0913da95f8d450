"""Request bodies whose values have types other than those in the API document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from queenright.server import app as _  # noqa: F401  # every route, with its bodies
from queenright.server.routes.params import Body

VALUES_OF_OTHER_TYPES: dict[str, list[Any]] = {
    "boolean": [0, 1, "true"],
    "number": ["60", True],
    "integer": ["60", True],
    "string": [7, True, ["a"]],
}


def list_bodies(kind: type[Body]) -> Iterator[type[Body]]:
    for body in kind.__subclasses__():
        yield body
        yield from list_bodies(body)


def test_wrong_type_is_rejected_in_every_body() -> None:
    """For example, 0 is not accepted as false, and "60" not as 60."""
    checked_bodies = set[str]()
    for body in list_bodies(Body):
        for name, schema in body.model_json_schema()["properties"].items():
            kind = schema.get("type")
            for value in VALUES_OF_OTHER_TYPES.get(kind, []):
                with pytest.raises(ValidationError) as error:
                    body.model_validate({name: value})
                assert name in {fault["loc"][0] for fault in error.value.errors()}, (body, name, value)
                checked_bodies.add(kind)

    assert {"boolean", "number", "string"} <= checked_bodies
