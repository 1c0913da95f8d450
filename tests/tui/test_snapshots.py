"""Screens equal their golden files; ``python -m tests.tui.snapshots --write`` updates them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import pytest_asyncio

from tests.tui.pictures import SMALL
from tests.tui.snapshots import DOCUMENTS, GOLDEN, golden_path, render_files

FILES = sorted([*GOLDEN.glob("*.txt"), *DOCUMENTS.glob("tui-*.svg")])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def current_screens() -> dict[Path, str]:
    """Return the current content of all golden files."""
    return await render_files()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
async def test_screen_equals_its_golden_file(path: Path, current_screens: dict[Path, str]) -> None:
    golden = await asyncio.to_thread(path.read_text)
    assert current_screens[path] == golden, f"{path.name}: python -m tests.tui.snapshots --write"


@pytest.mark.asyncio(loop_scope="module")
async def test_every_screen_has_its_golden_file(current_screens: dict[Path, str]) -> None:
    assert sorted(current_screens) == FILES


@pytest.mark.parametrize("state", ["✖ failing", "■ stuck", "◐ degraded", "● healthy", "○ completed"])
def test_state_has_a_symbol_and_a_word_besides_its_colour(state: str) -> None:
    assert state in golden_path("fleet", 80).read_text()


def test_no_line_is_wider_than_the_terminal() -> None:
    for path in golden_path("fleet", 80).parent.glob("*-80.txt"):
        assert max(map(len, path.read_text().splitlines())) <= SMALL[0], path.name


def test_picture_loads_nothing_from_other_sites() -> None:
    for path in DOCUMENTS.glob("tui-*.svg"):
        assert "http" not in path.read_text().replace("http://www.w3.org/", ""), path.name
