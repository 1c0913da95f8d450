"""Quote data in a conversation: JSON between markers that the data cannot forge."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from queenright.instrumentation.redaction import MASK, redact


def quote(tag: str, data: Mapping[str, Any]) -> str:
    """
    Return ``data`` as JSON between ``<tag>`` and ``</tag>``. No value in it can contain a marker.

    Invisible characters (control, zero-width, direction and tag characters) are removed, recognized secrets
    are masked, and the text is valid UTF-8.
    """
    text = json.dumps(sanitise(data), ensure_ascii=False, default=str)
    escaped_text = text.replace("<", "\\u003c").replace(">", "\\u003e")
    return f"<{tag}>\n{escaped_text}\n</{tag}>"


def sanitise(value: Any) -> Any:
    """Return JSON values with secrets masked and invisible characters removed in every text."""
    if isinstance(value, str):
        # A mask may be longer than the text that it replaces.
        return redact(value, max(1, len(MASK) * len(value)))
    if isinstance(value, Mapping):
        return {sanitise(str(key)): sanitise(item) for key, item in value.items()}
    return [sanitise(item) for item in value] if isinstance(value, list | tuple) else value


def unquote(tag: str, text: str) -> dict[str, Any] | None:
    """Return the data that ``quote`` put into ``text``, or None if there is none."""
    match = re.search(rf"<{tag}>\n(.*)\n</{tag}>", text, re.DOTALL)
    if match is None:
        return None
    try:
        data = json.loads(match[1])
    except ValueError:
        return None
    return data if isinstance(data, dict) else None
