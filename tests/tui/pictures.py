"""Each screen of the terminal interface as it looks with fixed answers and a fixed clock."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from textual.pilot import Pilot
from textual.widgets import Input

from queenright.tui.app import QueenrightApp
from queenright.tui.link import Link
from tests.tui.canned import HAPPENED, NOW, PAGED, Canned, Row
from tests.waiting import until

SMALL: Final = (80, 24)
"""The smallest terminal."""
LARGE: Final = (120, 34)
"""That of the documents."""


@dataclass(frozen=True)
class Picture:
    """A screen: how one gets there, how many streams must have told all, and what happened before."""

    name: str
    keys: tuple[str, ...] = ()
    streams: int = 1
    shown: bool = False
    """Whether it is in the documents, and large then."""
    happened: tuple[Row, ...] = tuple(HAPPENED)


PICTURES: Final = (
    Picture("fleet", shown=True),
    Picture("worker", ("down", "enter"), streams=2, shown=True),
    Picture("tickets", ("2",)),
    Picture("breakers", ("3",)),
    Picture("feed", ("4",)),
    Picture("notice", happened=(*HAPPENED, *PAGED), shown=True),
    Picture("queen", ("down", "ctrl+q"), streams=2, shown=True),
    Picture("talk", ("slash", *"talk", "space", *"docs_checker", "enter"), streams=2, shown=True),
    Picture("keys", ("question_mark",)),
    Picture("terminate", ("down", "t", *"it loops", "enter")),
)


async def taken(picture: Picture, size: tuple[int, int], look: Callable[[QueenrightApp], Any]) -> Any:
    """Go to a screen, and return what ``look`` sees there."""
    canned = Canned(list(picture.happened))
    app = QueenrightApp(Link(canned.client(), by="ada"), clock=lambda: NOW)
    async with app.run_test(size=size) as pilot:
        await settled(app, pilot, lambda: canned.told >= 1 and bool(app.shared.fleet.breakers))
        await pilot.press(*picture.keys)
        await settled(app, pilot, lambda: canned.told >= picture.streams)
        return look(app)


async def settled(app: QueenrightApp, pilot: Pilot[None], there: Callable[[], object]) -> None:
    """Wait until everything is known, and painted."""
    await until(there, "the screen knows everything")
    for one in app.screen.query(Input):
        one.cursor_blink = False
    last = ""
    for _ in range(50):
        await pilot.pause()
        await app.paint()
        await pilot.pause()
        now = text_of(app)
        if now == last:
            return
        last = now


def text_of(app: QueenrightApp) -> str:
    """Return what is on the screen, as text; lines without the blanks at their end."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips) + "\n"


def svg_of(app: QueenrightApp) -> str:
    """Return what is on the screen as SVG, which loads nothing from anywhere."""
    svg = app.export_screenshot(title="queenright tui")
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "monospace")
