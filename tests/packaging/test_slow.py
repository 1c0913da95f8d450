"""Every test in the list of slow tests exists, so that a rename does not add it to `make test`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.slow import SAMPLES, SLOW

_TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("name", sorted({*SLOW, *SAMPLES}))
def test_slow_test_exists(name: str) -> None:
    file, *names = name.partition("[")[0].split("::")
    node: ast.AST = ast.parse((_TESTS / file).read_text("utf-8"))
    for test_name in names:
        children = {getattr(child, "name", ""): child for child in ast.iter_child_nodes(node)}
        assert test_name in children, f"{file} has no {test_name}"
        node = children[test_name]
