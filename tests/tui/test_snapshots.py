"""Screens equal their golden files; ``python -m tests.tui.snapshots --write`` updates them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import pytest_asyncio

from tests.tui.pictures import SMALL
from tests.tui.snapshots import DOCUMENTS, GOLDEN, drawn, golden

FILES = sorted([*GOLDEN.glob("*.txt"), *DOCUMENTS.glob("tui-*.svg")])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def now() -> dict[Path, str]:
    """All screens as they are now."""
    return await drawn()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("path", FILES, ids=lambda one: one.name)
async def test_screen_equals_its_golden_file(path: Path, now: dict[Path, str]) -> None:
    before = await asyncio.to_thread(path.read_text)
    assert now[path] == before, f"{path.name}: python -m tests.tui.snapshots --write"


@pytest.mark.asyncio(loop_scope="module")
async def test_every_screen_has_its_golden_file(now: dict[Path, str]) -> None:
    assert sorted(now) == FILES


@pytest.mark.parametrize("state", ["✖ failing", "■ stuck", "◐ degraded", "● healthy", "○ completed"])
def test_state_is_shown_by_sign_and_word_and_not_only_colour(state: str) -> None:
    assert state in golden("fleet", 80).read_text()


def test_nothing_is_wider_than_its_terminal() -> None:
    for path in golden("fleet", 80).parent.glob("*-80.txt"):
        assert max(map(len, path.read_text().splitlines())) <= SMALL[0], path.name


def test_picture_loads_nothing_from_other_sites() -> None:
    for path in DOCUMENTS.glob("tui-*.svg"):
        assert "http" not in path.read_text().replace("http://www.w3.org/", ""), path.name
