"""Each screen of the terminal interface with fixed responses and a fixed clock."""

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
from tests.tui.canned import BACKGROUND_FAILURE, FLEET_EVENTS, NOW, QUEEN_NOTIFICATIONS, Canned, Row
from tests.waiting import until

SMALL: Final = (80, 24)
"""The smallest terminal."""
LARGE: Final = (120, 34)
"""The terminal size of the pictures in the documents."""


@dataclass(frozen=True)
class Picture:
    """A screen: the keys that open and leave it, the number of its streams, and the events that it shows."""

    name: str
    keys: tuple[str, ...] = ()
    leaving_keys: tuple[str, ...] = ("2",)
    streams: int = 0
    is_in_documents: bool = False
    """Whether the documents show it; it is then captured in the large size too."""
    events: tuple[Row, ...] = tuple(FLEET_EVENTS)


PICTURES: Final = (
    Picture("fleet", is_in_documents=True),
    Picture("needs-you", ("1", "down"), ("up", "2"), is_in_documents=True),
    Picture("filter", ("slash", *"filter working nightly", "enter"), ("escape",)),
    Picture("tickets", ("3",)),
    Picture("breakers", ("4",)),
    Picture("feed", ("5",)),
    Picture("keys", ("question_mark",), ("escape",)),
    Picture("worker", ("down", "enter"), ("escape", "up"), streams=1, is_in_documents=True),
    Picture("queen", ("down", "ctrl+q"), ("ctrl+q", "up"), streams=1, is_in_documents=True),
    Picture("terminate", ("down", "t", *"it loops", "enter"), ("n", "up")),
    Picture("notice", events=(*FLEET_EVENTS, *QUEEN_NOTIFICATIONS), is_in_documents=True),
    Picture(
        "talk",
        ("slash", *"talk docs_checker", "enter"),
        streams=1,
        events=(*FLEET_EVENTS, BACKGROUND_FAILURE),
        is_in_documents=True,
    ),
)


@dataclass(frozen=True)
class Capture:
    """The text and the picture of a screen in a terminal of one width."""

    name: str
    width: int
    text: str
    svg: str


async def capture_screens(pictures: Sequence[Picture]) -> list[Capture]:
    """Open each screen, and return its text and pictures."""
    captures: list[Capture] = []
    for events, group in groupby(pictures, key=lambda picture: picture.events):
        async with run_interface(events) as (app, pilot, canned):
            for picture in group:
                captures += await capture_screen(picture, app, pilot, canned)
    return captures


@asynccontextmanager
async def run_interface(
    events: Sequence[Row],
) -> AsyncIterator[tuple[QueenrightApp, Pilot[None], Canned]]:
    """Run the interface with fixed responses, and yield it once they are loaded."""
    canned = Canned(list(events))
    app = QueenrightApp(ServiceGateway(canned.create_client(), by="ada"), clock=lambda: NOW)
    async with app.run_test(size=SMALL) as pilot:
        await wait_until_drawn(
            app, pilot, lambda: canned.finished_streams >= 1 and not app.app_state.fleet.stale
        )
        await pilot.press("2")
        yield app, pilot, canned


async def capture_screen(
    picture: Picture, app: QueenrightApp, pilot: Pilot[None], canned: Canned
) -> list[Capture]:
    """Capture one screen, and go back to the fleet."""
    expected_streams = canned.finished_streams + picture.streams
    pictures: list[Capture] = []
    await pilot.press(*picture.keys)
    for width, height in (SMALL, LARGE) if picture.is_in_documents else (SMALL,):
        await pilot.resize_terminal(width, height)
        await wait_until_drawn(app, pilot, lambda: canned.finished_streams >= expected_streams)
        pictures.append(
            Capture(picture.name, width, screen_text(app), screen_svg(app) if width == LARGE[0] else "")
        )
    await pilot.resize_terminal(*SMALL)
    await pilot.press(*picture.leaving_keys)
    return pictures


async def wait_until_drawn(app: QueenrightApp, pilot: Pilot[None], condition: Callable[[], object]) -> None:
    """Wait until all data is loaded and drawn."""
    await until(condition, "the screen has loaded its data")
    for field in app.screen.query(Input):
        field.cursor_blink = False
    previous = ""
    for _ in range(50):
        await pilot.pause()
        await app.redraw()
        await pilot.pause()
        current = screen_text(app)
        if current == previous:
            return
        previous = current


def throttle(check: Callable[[], object]) -> Callable[[], bool]:
    """Run a check at most four times a second: the screen is not drawn more often, and reading it is slow."""
    calls = count()
    return lambda: next(calls) % 12 == 0 and bool(check())


def screen_text(app: QueenrightApp) -> str:
    """Return the text of the screen, without trailing spaces."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips) + "\n"


def screen_svg(app: QueenrightApp) -> str:
    """Return the screen as an SVG that loads nothing from other sites."""
    svg = app.export_screenshot(title="queenright tui")
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"@font-face\s*\{.*?\}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", "monospace")
