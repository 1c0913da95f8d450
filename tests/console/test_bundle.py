"""The built console is small and current, and loads nothing from other hosts."""

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

FIRST_LOAD_BYTES: Final = 200_000
LAZY_ROUTE_BYTES: Final = 60_000
# Namespaces and documents named in error messages, which are never requested.
UNREQUESTED_URLS: Final = ("http://www.w3.org/", "https://react.dev/errors/", "https://tanstack.com/")

Manifest = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    content: Manifest = json.loads((console.BUILT / "manifest.json").read_text())
    return content


def list_files(manifest: Manifest, name: str) -> set[str]:
    """Return the files that a browser loads for an entry of the manifest."""
    entry = manifest[name]
    files = {entry["file"], *entry.get("css", ())}
    for part in entry.get("imports", ()):
        files |= list_files(manifest, part)
    return files


def compressed_size(files: set[str]) -> int:
    """Return the total size of the files as sent, compressed, in bytes."""
    return sum(len(gzip.compress((console.BUILT / name).read_bytes(), 9)) for name in files)


def test_first_load_and_lazy_routes_are_within_their_budgets(manifest: Manifest) -> None:
    first_load = list_files(manifest, "index.html") | list_files(manifest, "style.css")
    assert compressed_size(first_load) <= FIRST_LOAD_BYTES
    routes = {
        name: compressed_size(list_files(manifest, name) - first_load)
        for name in manifest
        if name.startswith("src/routes/")
    }
    assert routes
    assert {name: total for name, total in routes.items() if total > LAZY_ROUTE_BYTES} == {}


def test_nothing_is_loaded_from_another_host() -> None:
    """B115: no built file names another host, except in names that are never requested."""
    urls = {
        url
        for path in console.BUILT.rglob("*.*")
        for url in re.findall(r"(?:https?:)?//[\w.-]+\.\w+/[^\s\"'`)]*", path.read_text("utf-8"))
        if url.startswith("http") and not url.startswith(UNREQUESTED_URLS)
    }
    assert urls == set()


def test_built_files_and_references_match(manifest: Manifest) -> None:
    """A merge of two builds would leave references to missing files, or files that nothing references."""
    index = (console.BUILT / "index.html").read_text()
    referenced = set(re.findall(r'(?:src|href)="/console/([^"]+)"', index))
    built = {
        path.relative_to(console.BUILT).as_posix() for path in console.BUILT.rglob("*") if path.is_file()
    }
    listed = set[str]().union(*(list_files(manifest, name) for name in manifest))
    assert referenced
    assert (referenced | listed) - built == set()
    assert {name for name in built if name.startswith("assets/")} - listed == set()


def test_css_class_is_in_one_style_sheet() -> None:
    """All style sheets are built into one file, so a class in two of them would get both styles."""
    sheets: dict[str, set[str]] = {}
    for path in (console.SOURCE / "src").rglob("*.css"):
        text = re.sub(r"/\*.*?\*/", "", path.read_text("utf-8"), flags=re.DOTALL)
        for selector in ",".join(re.findall(r"([^{}]+)\{", text)).split(","):
            if selector_match := re.match(r"\s*(\.[\w-]+)", selector):
                sheets.setdefault(selector_match[1], set()).add(path.name)
    assert sheets
    assert {name: names for name, names in sheets.items() if len(names) > 1} == {}


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
    rebuilt = source.parent / "queenright" / "server" / "pages" / "console"

    def read_files(folder: Path) -> dict[str, bytes]:
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and path.name != "source.txt"
        }

    committed, rebuilt_files = read_files(console.BUILT), read_files(rebuilt)
    assert committed.keys() == rebuilt_files.keys()
    assert [name for name in committed if committed[name] != rebuilt_files[name]] == []
