"""The pinned packages are complete, consistent, have hashes, and match pyproject.toml."""

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

_PIN_LINE = re.compile(r"^(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[^ ;]+)( ; (?P<marker>[^\\]+?))? \\$")
_HASH_LINE = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


def read_pins(name: str) -> dict[str, Version]:
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    return {match["name"]: Version(match["version"]) for line in lines if (match := _PIN_LINE.match(line))}


def list_required_packages(name: str) -> list[Requirement]:
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
    extra_requirements = [
        Requirement(text)
        for requirement in requirements
        if requirement.name == "queenright"
        for extra in requirement.extras
        for text in extras[extra]
    ]
    return [
        requirement for requirement in requirements if requirement.name != "queenright"
    ] + extra_requirements


@pytest.mark.parametrize("name", FILES)
def test_every_line_is_a_pin_or_its_hash(name: str) -> None:
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()

    invalid = [line for line in lines if not _PIN_LINE.match(line) and not _HASH_LINE.match(line)]

    assert lines
    assert invalid == []


@pytest.mark.parametrize("name", FILES)
def test_every_pin_is_followed_by_a_hash(name: str) -> None:
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()

    without_hash = [
        line
        for line, next_line in zip(lines, [*lines[1:], ""], strict=True)
        if _PIN_LINE.match(line) and not _HASH_LINE.match(next_line)
    ]

    assert without_hash == []


@pytest.mark.parametrize("name", FILES)
def test_no_line_has_a_download_location(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()

    assert "://" not in text
    assert "index" not in re.sub(r"==.*", "", text)


@pytest.mark.parametrize("name", FILES)
def test_every_requirement_is_pinned_to_a_matching_version(name: str) -> None:
    pins = read_pins(name)

    unpinned = [
        str(requirement)
        for requirement in list_required_packages(name)
        if (version := pins.get(canonicalize_name(requirement.name))) is None
        or not requirement.specifier.contains(version, prereleases=True)
    ]

    assert unpinned == []


def test_run_pins_are_in_llm_and_llm_pins_are_in_dev() -> None:
    run, llm, dev = (read_pins(name).items() for name in FILES)

    assert run <= llm
    assert llm <= dev


@pytest.mark.parametrize("name", FILES)
def test_no_compromised_release_is_pinned(name: str) -> None:
    pins = read_pins(name)

    assert not [package for package, versions in COMPROMISED.items() if str(pins.get(package)) in versions]


def test_requirements_exclude_compromised_releases() -> None:
    [litellm] = [
        requirement for requirement in list_required_packages("llm") if requirement.name == "litellm"
    ]

    assert not [version for version in COMPROMISED["litellm"] if litellm.specifier.contains(version)]
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
