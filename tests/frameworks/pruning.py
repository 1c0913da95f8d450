"""Omits from a fixture what each model call repeats: the messages in the middle of its history."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_NUMBERED: Final = re.compile(r"(.*(?:message|messages|prompt|prompts|tools|functions))\.(\d+)\.")
"""Keys of attributes with one message each, such as ``llm.input_messages.3.message.content``."""
_FIRST: Final = 1
_LAST: Final = 3
"""How many messages of a list are kept: the first, and the last, which are new in this call."""
_LONG: Final = 400
"""Maximum number of characters of a text that is not shortened."""


def prune(value: Any) -> Any:
    """
    Return the body of a request with shortened histories; all spans, and everything new in each, are kept.
    """
    if isinstance(value, list):
        return [prune(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"stringValue"}:
        return {"stringValue": _prune_text(value["stringValue"])}
    pruned = {name: prune(item) for name, item in value.items()}
    if isinstance(attributes := pruned.get("attributes"), list):
        pruned["attributes"] = _prune_attributes(attributes)
    return pruned


def _prune_attributes(attributes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    last: dict[str, int] = {}
    for attribute in attributes:
        if found := _NUMBERED.match(attribute["key"]):
            last[found[1]] = max(last.get(found[1], 0), int(found[2]))

    def is_kept(key: str) -> bool:
        match = _NUMBERED.match(key)
        return match is None or not _FIRST <= int(match[2]) <= last[match[1]] - _LAST

    return [attribute for attribute in attributes if is_kept(attribute["key"])]


def _prune_text(text: str) -> str:
    if len(text) <= _LONG:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return json.dumps(_prune_lists(value), ensure_ascii=False)


def _prune_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _prune_lists(item) for name, item in value.items()}
    if isinstance(value, list):
        result = value[:_FIRST] + value[-_LAST:] if len(value) > _FIRST + _LAST else value
        return [_prune_lists(item) for item in result]
    return _prune_text(value) if isinstance(value, str) else value
