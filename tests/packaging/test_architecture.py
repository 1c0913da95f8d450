"""``docs/architecture.md`` matches the packages, layers, modules and functions of the code."""

from __future__ import annotations

import importlib
import re
import tomllib
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from queenright.server.monitoring import pipeline

ROOT = Path(__file__).parents[2]
PAGE_TEXT = (ROOT / "docs" / "architecture.md").read_text("utf-8")
LINTER: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
DEFINITIONS = sorted(set(re.findall(r"(queenright(?:\.\w+)+):(\w+(?:\.\w+)*)", PAGE_TEXT)))


def read_block(language: str) -> str:
    """Return the only block in a language on the page."""
    [match] = re.findall(rf"```{language}\n(.*?)```", PAGE_TEXT, re.DOTALL)
    return str(match)


def read_contract(name: str) -> dict[str, Any]:
    [contract] = [candidate for candidate in LINTER["contracts"] if candidate["name"] == name]
    return dict(contract)


def test_package_picture_equals_the_import_linter_layers() -> None:
    layers = [re.split(r"\s*\|\s*", layer) for layer in read_contract("imports point down")["layers"]]

    matches = [re.match(r"(\w+(?: \| \w+)*)\s", line) for line in read_block("text").splitlines()]

    assert [line[1].split(" | ") for line in matches if line] == [
        [name.removeprefix("queenright.") for name in layer] for layer in layers
    ]


def test_every_package_is_in_the_picture_or_the_table() -> None:
    mentions = set(re.findall(r"^\w+(?: \| \w+)*", read_block("text"), re.MULTILINE))
    package_names = {name for line in mentions for name in line.split(" | ")}
    package_names |= set(re.findall(r"^\| `(\w+)` \|", PAGE_TEXT, re.MULTILINE))

    assert package_names == {package.removeprefix("queenright.") for package in LINTER["root_packages"]}


@pytest.mark.parametrize("package", ["server", "cli"])
def test_every_folder_of_a_package_is_listed(package: str) -> None:
    [section] = re.findall(rf"^`{package}` has[^\n]*\n\n((?:- .*\n)+)", PAGE_TEXT, re.MULTILINE)
    folders = {path.parent.name for path in (ROOT / "server" / "queenright" / package).glob("*/*.py")}

    assert set(re.findall(r"`(\w+)`", section)) == folders


@pytest.mark.parametrize("row", re.findall(r"^\| `(\w+)` \| .* \| (`.*`) \|$", PAGE_TEXT, re.MULTILINE))
def test_package_imports_equal_the_table(row: tuple[str, str]) -> None:
    name, imports = row
    folder = next(ROOT.glob(f"*/queenright/{name}"))
    packages = {
        package
        for file in folder.rglob("*.py")
        for package in re.findall(
            r"^\s*(?:from|import) queenright\.(\w+)", file.read_text("utf-8"), re.MULTILINE
        )
    }

    assert packages - {name} == set(re.findall(r"`(\w+)`", imports))


@pytest.mark.parametrize(("module", "name"), DEFINITIONS)
def test_every_definition_on_the_page_exists(module: str, name: str) -> None:
    assert callable(reduce(getattr, name.split("."), importlib.import_module(module)))


def test_every_node_of_the_event_picture_names_a_definition() -> None:
    nodes = re.findall(
        r'^\s*(\w+)\["[^"]*<br/>queenright[\w.]+:[\w.]+"\]', read_block("mermaid"), re.MULTILINE
    )
    ends = {end for edge in re.findall(r"--> (\w+)$", read_block("mermaid"), re.MULTILINE) for end in [edge]}

    assert ends <= set(nodes)
    assert len(nodes) == len(set(nodes)) >= 12


def test_event_picture_has_the_order_that_the_pipeline_documents() -> None:
    steps = ["ingest", "observe", "publish_pending", "update_tickets"]
    picture, docstring = read_block("mermaid"), str(pipeline.__doc__)

    for text in (picture, docstring):
        positions = [text.index(name) for name in steps if name != "update_tickets"]
        assert positions == sorted(positions)
    assert all(name in docstring for name in steps)
