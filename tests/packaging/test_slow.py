"""The list of slow tests names tests that exist: a rename does not bring one back to `make test`."""

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
    for each in names:
        found = {getattr(child, "name", ""): child for child in ast.iter_child_nodes(node)}
        assert each in found, f"{file} has no {each}"
        node = found[each]
