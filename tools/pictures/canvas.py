"""A page in pixels, its origin at the top left: boxes, texts, and places for plots."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.textpath import TextPath

from tools.pictures.colours import DIM, EDGE, GRID, PAGE, TEXT

_DPI = 100
_POINTS = 72 / _DPI

mpl.rcParams |= {"font.family": "DejaVu Sans", "text.color": TEXT, "axes.edgecolor": GRID}


@functools.lru_cache(maxsize=10_000)
def width_of(text: str, size: float) -> float:
    """Return how wide a text is, in pixels; ``size`` is in pixels too."""
    # A trailing space has no outline, so it is measured between two letters.
    if not text.strip():
        return 0.3 * size * len(text)
    return float(TextPath((0, 0), text, size=size).get_extents().width)


def cut(text: str, size: float, room: float) -> str:
    """Return ``text``, shortened with an ellipsis until it fits ``room`` pixels."""
    if width_of(text, size) <= room:
        return text
    while text and width_of(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


class Canvas:
    """A page of ``width`` by ``height`` pixels."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / _DPI, height / _DPI), dpi=_DPI, facecolor=PAGE)
        self._page: Any = self.figure.add_axes((0, 0, 1, 1))
        self._page.set(xlim=(0, width), ylim=(height, 0))
        self._page.axis("off")

    def box(
        self, x: float, y: float, w: float, h: float, colour: str, *, edge: str = "none", round_by: float = 3
    ) -> None:
        """Draw a filled box."""
        style = f"round,pad=0,rounding_size={round_by}"
        self._page.add_patch(
            FancyBboxPatch((x, y), w, h, boxstyle=style, facecolor=colour, edgecolor=edge, linewidth=0.8)
        )

    def bar(self, x: float, y: float, w: float, h: float, colour: str, alpha: float = 1) -> None:
        """Draw a filled rectangle without an edge."""
        self._page.add_patch(Rectangle((x, y), w, h, facecolor=colour, edgecolor="none", alpha=alpha))

    def rule(self, x: float, y: float, w: float, colour: str = EDGE) -> None:
        """Draw a thin line from left to right."""
        self._page.plot([x, x + w], [y, y], color=colour, linewidth=0.8, solid_capstyle="butt")

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        colour: str = TEXT,
        *,
        align: str = "left",
        bold: bool = False,
        room: float | None = None,
    ) -> None:
        """Write a text whose middle is at the height ``y``, within ``room`` pixels if given."""
        if room is not None:
            text = cut(text, size * (1.08 if bold else 1), room)
        self._page.text(
            x,
            y,
            text.replace("$", r"\$"),
            fontsize=size * _POINTS,
            color=colour,
            ha=align,
            va="center_baseline",
            fontweight="bold" if bold else "normal",
        )

    def plot(self, x: float, y: float, w: float, h: float) -> Any:
        """Return axes at a place, quietly dressed."""
        place = (x / self.width, 1 - (y + h) / self.height, w / self.width, h / self.height)
        axes: Any = self.figure.add_axes(place)
        axes.set_facecolor("none")
        for side in axes.spines.values():
            side.set_visible(False)
        axes.grid(True, color=GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(length=0, labelsize=11 * _POINTS, labelcolor=DIM, pad=4)
        return axes

    def save(self, file: Path) -> None:
        """Write the page as a small PNG: few colours are enough for it."""
        from PIL import Image

        self.figure.savefig(file, dpi=_DPI, facecolor=PAGE, metadata={"Software": None})
        with Image.open(file) as picture:
            picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(file, optimize=True)
