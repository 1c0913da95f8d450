"""Tables of words, read from ``words.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path


@cache
def _read_file() -> Mapping[str, Mapping[str, str]]:
    return tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


def read_words(table: str) -> dict[str, frozenset[str]]:
    """Return the sets of words in a table, by name."""
    return {name: frozenset(words.split()) for name, words in _read_file()[table].items()}
