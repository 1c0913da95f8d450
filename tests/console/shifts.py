"""Layout shifts of a page, as Chromium scores them."""

from __future__ import annotations

from typing import Final

RECORD_SHIFTS: Final = """() => {
    window.shift = 0
    new PerformanceObserver((list) => list.getEntries().forEach((entry) => (window.shift += entry.value)))
        .observe({type: "layout-shift", buffered: true})
}"""
"""Counts the shifts since the page was opened."""

SHIFT: Final = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(window.shift))))"
"""Resolves to their score, once what changes in this frame has been drawn."""
