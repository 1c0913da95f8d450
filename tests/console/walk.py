"""The variants in which tests use the console: screen width, theme, and mouse or keyboard."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import pytest
from playwright.async_api import Locator, Page

SCREENS: Final[tuple[tuple[int, Literal["light", "dark"]], ...]] = (
    (390, "light"),
    (390, "dark"),
    (1280, "dark"),
    (1280, "light"),
    (1920, "light"),
    (1920, "dark"),
)
VARIANTS: Final = tuple(
    f"{width}-{theme}-{device}" for width, theme in SCREENS for device in ("mouse", "keyboard")
)
"""All variants; `tests.slow.SAMPLES` has the one that `make test` uses for each walk."""
DEFAULT_VARIANT: Final = "1280-light-mouse"

all_variants = pytest.mark.parametrize("variant", VARIANTS, indirect=True)


class Variant(NamedTuple):
    """A screen width in pixels, a theme, and mouse or keyboard."""

    width: int
    theme: Literal["light", "dark"]
    has_mouse: bool

    @classmethod
    def parse(cls, name: str) -> Variant:
        """Return the variant with a name such as ``390-dark-keyboard``."""
        width, theme, device = name.split("-")
        return cls(int(width), "dark" if theme == "dark" else "light", device == "mouse")


class User:
    """A user who presses and types on a page, by mouse or by keyboard alone."""

    def __init__(self, page: Page, *, has_mouse: bool) -> None:
        self.page = page
        self.has_mouse = has_mouse

    async def press(self, target: Locator) -> None:
        """Press a button, or follow a link."""
        if self.has_mouse:
            await target.click()
        else:
            await self.focus(target)
            await self.page.keyboard.press("Enter")

    async def write(self, target: Locator, text: str) -> None:
        """Type into a field."""
        if self.has_mouse:
            await target.click()
        else:
            await self.focus(target)
        await self.page.keyboard.type(text)

    async def choose(self, target: Locator, label: str) -> None:
        """Choose the option with this label in a select."""
        if self.has_mouse:
            await target.select_option(label=label)
        else:
            await self.focus(target)
            await self.page.keyboard.type(label)

    async def slide(self, target: Locator) -> None:
        """Move a slider from its current position."""
        if self.has_mouse:
            box = await target.bounding_box()
            assert box is not None
            await target.click(position={"x": box["width"] * 0.7, "y": box["height"] / 2})
        else:
            await self.focus(target)
            await self.page.keyboard.press("Home")
            await self.page.keyboard.press("ArrowRight")

    async def focus(self, target: Locator) -> None:
        """Press Tab until the target has the focus."""
        await target.wait_for(state="attached")
        for _ in range(250):
            if await target.evaluate("element => element === document.activeElement"):
                return
            await self.page.keyboard.press("Tab")
        pytest.fail(f"Tab does not reach {target}")
