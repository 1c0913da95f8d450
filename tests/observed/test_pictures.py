"""The pictures in the documentation can be drawn from what the story answers."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from tests.grafana.shown import NAMES, load, panels
from tools.pictures.__main__ import write
from tools.pictures.units import written
from tools.story.recording import Story

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
DRAWN = ("agent", "cost")


def test_a_picture_has_room_for_the_whole_dashboard(story: Story, tmp_path: Path) -> None:
    for file, name in zip(write(story, tmp_path, DRAWN), DRAWN, strict=True):
        rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in load(name)["panels"])
        with Image.open(file) as picture:
            assert picture.height > 30 * rows
            assert len(picture.getcolors(256) or []) > 30


def test_the_drawn_dashboards_have_every_kind_of_panel() -> None:
    def kinds(names: tuple[str, ...]) -> set[str]:
        return {panel["type"] for name in names for panel in panels(load(name))}

    assert kinds(DRAWN) == kinds(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_dashboard_has_its_picture_in_the_documentation(name: str) -> None:
    text = (PICTURES.parent / "dashboards.md").read_text(encoding="utf-8")

    assert f"(pictures/dashboard-{name}.png)" in text
    with Image.open(PICTURES / f"dashboard-{name}.png") as picture:
        assert picture.width >= 1600


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.0123, "s", "12.3 ms"),
        (90, "s", "1.5 min"),
        (0.5, "percentunit", "50%"),
        (0.0044, "currencyUSD", "$0.0044"),
        (20_500, "suffix:tokens/s", "20.5 K tokens/s"),
        (3, "none", "3"),
        (1, "bool_yes_no", "Yes"),
    ],
)
def test_numbers_are_written_in_their_unit(value: float, unit: str, expected: str) -> None:
    assert written(value, unit) == expected
