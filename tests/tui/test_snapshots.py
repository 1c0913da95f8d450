"""Each screen looks as it did; ``python -m tests.tui.snapshots --write`` draws them anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tui.pictures import PICTURES, SMALL, Picture
from tests.tui.snapshots import DOCUMENTS, golden, large, small


def same(drawn: dict[Path, str]) -> None:
    for path, text in drawn.items():
        assert text == path.read_text(), f"{path.name}: python -m tests.tui.snapshots --write"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda one: one.name)
async def test_screen_in_80_by_24(picture: Picture) -> None:
    same(await small(picture))


@pytest.mark.parametrize("picture", [one for one in PICTURES if one.shown], ids=lambda one: one.name)
async def test_screen_of_the_documents(picture: Picture) -> None:
    same(await large(picture))


@pytest.mark.parametrize("state", ["✖ failing", "■ stuck", "◐ degraded", "● healthy", "○ terminated"])
def test_state_is_said_by_sign_and_word_not_by_colour_alone(state: str) -> None:
    assert state in golden("fleet", 80).read_text()


def test_nothing_is_wider_than_its_terminal() -> None:
    for path in golden("fleet", 80).parent.glob("*-80.txt"):
        assert max(map(len, path.read_text().splitlines())) <= SMALL[0], path.name


def test_a_picture_loads_nothing_from_elsewhere() -> None:
    for path in DOCUMENTS.glob("tui-*.svg"):
        assert "http" not in path.read_text().replace("http://www.w3.org/", ""), path.name
