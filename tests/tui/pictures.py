"""Each screen of the terminal interface as it looks with fixed answers and a fixed clock."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count, groupby
from typing import Final

from textual.pilot import Pilot
from textual.widgets import Input

from queenright.tui.app import QueenrightApp
from queenright.tui.gateway import ServiceGateway
from tests.tui.canned import BACKGROUND_FAILURE, HAPPENED, NOW, PAGED, Canned, Row
from tests.waiting import until

SMALL: Final = (80, 24)
"""The smallest terminal."""
LARGE: Final = (120, 34)
"""That of the documents."""


@dataclass(frozen=True)
class Picture:
    """A screen: how one gets there from the fleet and back, its own streams, and what happened before."""

    name: str
    keys: tuple[str, ...] = ()
    back: tuple[str, ...] = ("2",)
    streams: int = 0
    shown: bool = False
    """Whether it is in the documents, and large then."""
    happened: tuple[Row, ...] = tuple(HAPPENED)


PICTURES: Final = (
    Picture("fleet", shown=True),
    Picture("needs-you", ("1", "down"), ("up", "2"), shown=True),
    Picture("filter", ("slash", *"filter working nightly", "enter"), ("escape",)),
    Picture("tickets", ("3",)),
    Picture("breakers", ("4",)),
    Picture("feed", ("5",)),
    Picture("keys", ("question_mark",), ("escape",)),
    Picture("worker", ("down", "enter"), ("escape", "up"), streams=1, shown=True),
    Picture("queen", ("down", "ctrl+q"), ("ctrl+q", "up"), streams=1, shown=True),
    Picture("terminate", ("down", "t", *"it loops", "enter"), ("n", "up")),
    Picture("notice", happened=(*HAPPENED, *PAGED), shown=True),
    Picture(
        "talk",
        ("slash", *"talk docs_checker", "enter"),
        streams=1,
        happened=(*HAPPENED, BACKGROUND_FAILURE),
        shown=True,
    ),
)


@dataclass(frozen=True)
class Taken:
    """A screen in a terminal of a size: its text, and its picture."""

    name: str
    width: int
    text: str
    svg: str


async def taken(pictures: Sequence[Picture]) -> list[Taken]:
    """Go to these screens, one after the other, and return what is seen there."""
    found: list[Taken] = []
    for happened, some in groupby(pictures, key=lambda one: one.happened):
        async with begun(happened) as (app, pilot, canned):
            for one in some:
                found += await looked_at(one, app, pilot, canned)
    return found


@asynccontextmanager
async def begun(
    happened: Sequence[Row],
) -> AsyncIterator[tuple[QueenrightApp, Pilot[None], Canned]]:
    """The interface with fixed answers, once it knows them."""
    canned = Canned(list(happened))
    app = QueenrightApp(ServiceGateway(canned.client(), by="ada"), clock=lambda: NOW)
    async with app.run_test(size=SMALL) as pilot:
        await settled(app, pilot, lambda: canned.told >= 1 and not app.app_state.fleet.stale)
        await pilot.press("2")
        yield app, pilot, canned


async def looked_at(picture: Picture, app: QueenrightApp, pilot: Pilot[None], canned: Canned) -> list[Taken]:
    """Go to one screen and back to the fleet."""
    events = canned.told + picture.streams
    pictures: list[Taken] = []
    await pilot.press(*picture.keys)
    for width, height in (SMALL, LARGE) if picture.shown else (SMALL,):
        await pilot.resize_terminal(width, height)
        await settled(app, pilot, lambda: canned.told >= events)
        pictures.append(Taken(picture.name, width, text_of(app), svg_of(app) if width == LARGE[0] else ""))
    await pilot.resize_terminal(*SMALL)
    await pilot.press(*picture.back)
    return pictures


async def settled(app: QueenrightApp, pilot: Pilot[None], there: Callable[[], object]) -> None:
    """Wait until everything is known, and painted."""
    await until(there, "the screen knows everything")
    for one in app.screen.query(Input):
        one.cursor_blink = False
    last = ""
    for _ in range(50):
        await pilot.pause()
        await app.redraw()
        await pilot.pause()
        now = text_of(app)
        if now == last:
            return
        last = now


def seldom(look: Callable[[], object]) -> Callable[[], bool]:
    """Look four times a second: a screen is drawn no more often, and to read it takes longer than to wait."""
    styles = count()
    return lambda: next(styles) % 12 == 0 and bool(look())


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
