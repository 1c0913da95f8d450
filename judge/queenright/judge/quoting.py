"""Data in a conversation: JSON between markers that nothing inside it can forge."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def quote(tag: str, data: Mapping[str, Any]) -> str:
    """Return ``data`` as JSON between ``<tag>`` and ``</tag>``; no value in it can contain a marker."""
    text = json.dumps(data, ensure_ascii=False, default=str)
    harmless = text.replace("<", "\\u003c").replace(">", "\\u003e")
    return f"<{tag}>\n{harmless}\n</{tag}>"


def unquote(tag: str, text: str) -> dict[str, Any] | None:
    """Return the data that ``quote`` put into ``text``, or None if there is none."""
    found = re.search(rf"<{tag}>\n(.*)\n</{tag}>", text, re.DOTALL)
    if found is None:
        return None
    try:
        data = json.loads(found[1])
    except ValueError:
        return None
    return data if isinstance(data, dict) else None
