"""The pinned packages are complete, hashed, consistent, and match pyproject.toml."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
FILES = ("run", "llm", "dev")
COMPROMISED = {"litellm": ("1.82.7", "1.82.8", "1.107.0")}

_PIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[^ ;]+)( ; (?P<marker>[^\\]+?))? \\$")
_HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


def read_pins(name: str) -> dict[str, Version]:
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    return {found["name"]: Version(found["version"]) for line in lines if (found := _PIN.match(line))}


def required_packages(name: str) -> list[Requirement]:
    """Return the requirements in pyproject.toml for one file of pinned packages."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    groups = project["dependency-groups"]
    texts = [*project["project"]["dependencies"], *extras["server"], *extras["mcp"], *groups["build"]]
    if name != "run":
        texts += extras["llm"]
    if name == "dev":
        texts += [text for text in groups["dev"] if isinstance(text, str)]
    requirements = [Requirement(text) for text in texts]
    own = [
        Requirement(text)
        for r in requirements
        if r.name == "queenright"
        for e in r.extras
        for text in extras[e]
    ]
    return [r for r in requirements if r.name != "queenright"] + own


@pytest.mark.parametrize("name", FILES)
def test_every_line_is_a_pin_or_its_hash(name: str) -> None:
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()

    invalid = [line for line in lines if not _PIN.match(line) and not _HASH.match(line)]

    assert lines
    assert invalid == []


@pytest.mark.parametrize("name", FILES)
def test_every_pin_is_followed_by_a_hash(name: str) -> None:
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()

    without_hash = [
        line
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        if _PIN.match(line) and not _HASH.match(after)
    ]

    assert without_hash == []


@pytest.mark.parametrize("name", FILES)
def test_no_line_has_a_download_location(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()

    assert "://" not in text
    assert "index" not in re.sub(r"==.*", "", text)


@pytest.mark.parametrize("name", FILES)
def test_every_requirement_is_pinned_to_a_matching_version(name: str) -> None:
    pinned = read_pins(name)

    wrong = [
        str(requirement)
        for requirement in required_packages(name)
        if (version := pinned.get(canonicalize_name(requirement.name))) is None
        or not requirement.specifier.contains(version, prereleases=True)
    ]

    assert wrong == []


def test_smaller_files_are_subsets_of_larger_ones() -> None:
    run, llm, dev = (read_pins(name).items() for name in FILES)

    assert run <= llm
    assert llm <= dev


@pytest.mark.parametrize("name", FILES)
def test_no_release_known_to_be_compromised_is_pinned(name: str) -> None:
    pinned = read_pins(name)

    assert not [p for p, bad in COMPROMISED.items() if str(pinned.get(p)) in bad]


def test_no_release_known_to_be_compromised_can_be_chosen() -> None:
    [litellm] = [requirement for requirement in required_packages("llm") if requirement.name == "litellm"]

    assert not [bad for bad in COMPROMISED["litellm"] if litellm.specifier.contains(bad)]
    assert not litellm.specifier.contains("1.107.0rc2", prereleases=True)


def test_dependencies_page_gives_the_reason_of_each_package() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text()
    tables = page.split("## Packages\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in tables.splitlines() if line.startswith("|")]
    listed_names = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]

    assert sorted(listed_names) == sorted(declared_packages())


def declared_packages() -> set[str]:
    """Return the names of the packages in pyproject.toml and in the console's package.json."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    console: dict[str, Any] = json.loads((ROOT / "server" / "console" / "package.json").read_text())
    lists = [
        project["project"]["dependencies"],
        *project["project"]["optional-dependencies"].values(),
        *project["dependency-groups"].values(),
    ]
    names = {Requirement(text).name for texts in lists for text in texts if isinstance(text, str)}
    return (names - {"queenright"}) | {*console["dependencies"], *console["devDependencies"]}
