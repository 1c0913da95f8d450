"""Layout shifts of a page, as Chromium scores them."""

from __future__ import annotations

from typing import Final

RECORD_SHIFTS: Final = """() => {
    window.shift = 0
    new PerformanceObserver((list) => list.getEntries().forEach((entry) => (window.shift += entry.value)))
        .observe({type: "layout-shift", buffered: true})
}"""
"""Script that sums the layout shifts since the page was opened."""

READ_SHIFT: Final = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(window.shift))))"
"""Script that resolves to the score once the current frame is drawn."""
