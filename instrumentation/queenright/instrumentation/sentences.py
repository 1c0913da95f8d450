"""Sentences that contain text from other sources."""

from __future__ import annotations


def sentence(text: str) -> str:
    """Return ``text`` with a full stop, unless it already ends a sentence."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
