"""Class names are unique; CONTRIBUTING.md lists the exceptions."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(path for path in ROOT.glob("*/queenright/*") if path.is_dir())


def list_public_classes(package: Path) -> Mapping[str, Sequence[str]]:
    """Return the files that define each public class, by class name."""
    modules = defaultdict(list)
    for file in package.rglob("*.py"):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules[node.name].append(str(file.relative_to(package)))
    return modules


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_public_class_names_are_unique_within_a_package(package: Path) -> None:
    classes = list_public_classes(package)

    assert {name: files for name, files in classes.items() if len(files) > 1} == {}


def test_packages_share_only_the_class_names_that_contributing_lists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| shared by |")[2].partition("\n\n")[0]
    exceptions = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    packages = defaultdict(set)
    for package in PACKAGES:
        for name in list_public_classes(package):
            packages[name].add(package.name)

    shared = {name: users for name, users in packages.items() if len(users) > 1}

    assert {name: sorted(users) for name, users in shared.items() if len(users - exceptions) > 1} == {
        name: sorted(packages[name]) for name in exceptions & set(packages)
    }
    assert exceptions <= {*shared, *set[str]().union(*shared.values())}
