"""A class name says which class it is: within a package, no two public classes share one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGES = sorted(path for path in Path(__file__).parents[2].glob("*/queenright/*") if path.is_dir())


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_public_class_names_are_unique_within_a_package(package: Path) -> None:
    modules = defaultdict(list)
    for file in package.rglob("*.py"):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(str(file.relative_to(package)))

    assert {name: files for name, files in modules.items() if len(files) > 1} == {}
