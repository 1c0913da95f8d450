"""The built console: small, current, and without anything from another host."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tools import console

FIRST_LOAD: Final = 200_000
LAZY_ROUTE: Final = 60_000
# Names of namespaces and of documents in error messages, which are never requested.
NAMES: Final = ("http://www.w3.org/", "https://react.dev/errors/", "https://tanstack.com/")

Manifest = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    found: Manifest = json.loads((console.BUILT / "manifest.json").read_text())
    return found


def needed(manifest: Manifest, name: str) -> set[str]:
    """The files that a browser loads for an entry of the manifest."""
    entry = manifest[name]
    files = {entry["file"], *entry.get("css", ())}
    for part in entry.get("imports", ()):
        files |= needed(manifest, part)
    return files


def size(files: set[str]) -> int:
    """Bytes of files as they are sent, compressed."""
    return sum(len(gzip.compress((console.BUILT / name).read_bytes(), 9)) for name in files)


def test_first_load_and_lazy_routes_are_within_their_budgets(manifest: Manifest) -> None:
    first = needed(manifest, "index.html") | needed(manifest, "style.css")
    assert size(first) <= FIRST_LOAD
    routes = {
        name: size(needed(manifest, name) - first) for name in manifest if name.startswith("src/routes/")
    }
    assert routes
    assert {name: total for name, total in routes.items() if total > LAZY_ROUTE} == {}


def test_nothing_is_loaded_from_another_host() -> None:
    """B115: no file that is built names another host, except in names that are never requested."""
    urls = {
        url
        for path in console.BUILT.rglob("*.*")
        for url in re.findall(r"(?:https?:)?//[\w.-]+\.\w+/[^\s\"'`)]*", path.read_text("utf-8"))
        if url.startswith("http") and not url.startswith(NAMES)
    }
    assert urls == set()


def test_every_file_that_a_page_loads_is_there(manifest: Manifest) -> None:
    """A merge that mixes two builds leaves names of files that are gone, or files that nothing names."""
    index = (console.BUILT / "index.html").read_text()
    named = set(re.findall(r'(?:src|href)="/console/([^"]+)"', index))
    built = {
        path.relative_to(console.BUILT).as_posix() for path in console.BUILT.rglob("*") if path.is_file()
    }
    listed = set[str]().union(*(needed(manifest, name) for name in manifest))
    assert named
    assert (named | listed) - built == set()
    assert {name for name in built if name.startswith("assets/")} - listed == set()


def test_class_has_one_style_sheet() -> None:
    """All style sheets are built into one, where a class that two pages style is styled as by both."""
    sheets: dict[str, set[str]] = {}
    for path in (console.SOURCE / "src").rglob("*.css"):
        text = re.sub(r"/\*.*?\*/", "", path.read_text("utf-8"), flags=re.DOTALL)
        for selector in ",".join(re.findall(r"([^{}]+)\{", text)).split(","):
            if first := re.match(r"\s*(\.[\w-]+)", selector):
                sheets.setdefault(first[1], set()).add(path.name)
    assert sheets
    assert {name: found for name, found in sheets.items() if len(found) > 1} == {}


def test_build_matches_the_sources() -> None:
    built_from = (console.BUILT / "source.txt").read_text().strip()
    assert built_from == console.source_digest(), "run `make console`, and commit what it builds"


def test_lock_file_has_hashes_and_no_addresses() -> None:
    lock = json.loads((console.SOURCE / "package-lock.json").read_text())
    packages = {name: package for name, package in lock["packages"].items() if name}
    assert [name for name, package in packages.items() if "integrity" not in package] == []
    assert [name for name, package in packages.items() if "resolved" in package] == []


def test_build_can_be_repeated(packages: Path) -> None:
    """The same sources give the same files."""
    npm = shutil.which("npm")
    assert npm is not None
    source = packages
    (source / "openapi.json").write_text(console.openapi())
    for command in ("types", "test", "build"):
        subprocess.run([npm, "--silent", "run", command], cwd=source, check=True)
    again = source.parent / "queenright" / "server" / "pages" / "console"

    def content(folder: Path) -> dict[str, bytes]:
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and path.name != "source.txt"
        }

    ours, theirs = content(console.BUILT), content(again)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []
