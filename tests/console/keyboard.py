"""A page without a mouse."""

from __future__ import annotations

import pytest
from playwright.async_api import Page


async def press_tab_until(page: Page, condition: str) -> None:
    """Move the focus on until a JavaScript condition holds for the element that has it."""
    for _ in range(120):
        await page.keyboard.press("Tab")
        if await page.evaluate(f"(element => {condition})(document.activeElement)"):
            return
    pytest.fail(f"Tab does not reach an element of which {condition}")
