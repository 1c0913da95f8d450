"""Omit the messages in the middle of each model call's history, which earlier calls contain."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_NUMBERED_KEY: Final = re.compile(r"(.*(?:message|messages|prompt|prompts|tools|functions))\.(\d+)\.")
"""Keys of attributes with one message each, such as ``llm.input_messages.3.message.content``."""
_KEPT_FIRST: Final = 1
_KEPT_LAST: Final = 3
"""Number of messages kept at the start of a list, and at its end, where they are new in this call."""
_MAX_TEXT_LENGTH: Final = 400
"""Texts with more characters are shortened."""


def prune(value: Any) -> Any:
    """
    Return the body of a request with shortened histories. All spans, and everything new in each, are kept.
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
    last_numbers: dict[str, int] = {}
    for attribute in attributes:
        if match := _NUMBERED_KEY.match(attribute["key"]):
            last_numbers[match[1]] = max(last_numbers.get(match[1], 0), int(match[2]))

    def is_kept(key: str) -> bool:
        match = _NUMBERED_KEY.match(key)
        return match is None or not _KEPT_FIRST <= int(match[2]) <= last_numbers[match[1]] - _KEPT_LAST

    return [attribute for attribute in attributes if is_kept(attribute["key"])]


def _prune_text(text: str) -> str:
    if len(text) <= _MAX_TEXT_LENGTH:
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
        result = value[:_KEPT_FIRST] + value[-_KEPT_LAST:] if len(value) > _KEPT_FIRST + _KEPT_LAST else value
        return [_prune_lists(item) for item in result]
    return _prune_text(value) if isinstance(value, str) else value
