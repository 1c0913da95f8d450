"""Text that is put together from texts of others."""

from __future__ import annotations


def sentence(text: str) -> str:
    """Return ``text`` with a full stop, unless it ends as a sentence does."""
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
