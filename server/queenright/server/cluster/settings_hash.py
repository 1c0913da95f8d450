"""Hash the settings that all processes of a cluster should share, to compare them."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from queenright.server.settings import Settings

_BLOCKS: Final = ("cluster", "health_monitoring", "judging", "alerting")
_EXCLUDED: Final = frozenset({"host", "nats", "partitions"})
"""Addresses, which may differ between processes, and settings that have their own fault message."""


def hash_settings(settings: Settings) -> dict[str, str]:
    """Return a hash of each block of the settings, without paths and addresses."""
    return {
        name: blake2b(repr(sorted(_list_values(getattr(settings, name)))).encode(), digest_size=4).hexdigest()
        for name in _BLOCKS
    }


def _list_values(block: BaseModel, path: str = "") -> Iterator[tuple[str, str]]:
    for name in type(block).model_fields:
        value = getattr(block, name)
        if isinstance(value, BaseModel):
            yield from _list_values(value, f"{path}{name}.")
        elif not (name in _EXCLUDED or name.endswith(("url", "urls")) or _is_path(value)):
            yield f"{path}{name}", repr(_sort_keys(value))


def _is_path(value: Any) -> bool:
    return isinstance(value, Path) or (
        isinstance(value, tuple) and any(isinstance(item, Path) for item in value)
    )


def _sort_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((str(key), repr(item)) for key, item in value.items())
    return sorted(map(str, value)) if isinstance(value, frozenset) else value
