"""
The conventions by which libraries name spans and their attributes: one module each, with its vendor's table.

A span is read by all of them at one time (two instrumentations often write on one span), so their tables
are joined here. A module may have

* ``ATTRIBUTES``: our field, and the attributes it is read from, the best first;
* ``OPERATIONS``: a ``gen_ai.operation.name`` and the kind of work it names;
* ``MARKERS``: a value of its ``marker`` attribute, in lower case, and the kind of work it names;
* ``NO_WORK``: values of its ``marker`` attribute, in lower case, that name no work of an agent's;
* ``CONTENT_EVENTS``: an event of a tool call's span, and the fields it records: each with the event's
  attributes that it is read from, the best first;
* ``SPAN_NAMES``: how the name of a span begins whose kind nothing else says; what follows names the thing;
* ``BARE_SPAN_NAMES``: a span's whole name, likewise;
* ``SCOPES``: how the scopes begin all of whose spans are an agent's work.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import ModuleType
from typing import Final

from queenright.instrumentation.conventions import (
    genai,
    google_adk,
    langsmith,
    logfire,
    mcp,
    observability,
    openinference,
    openllmetry,
    partial_spans,
    pydantic_ai,
    vercel_ai_sdk,
)
from queenright.instrumentation.conventions.kind import Kind

__all__ = ["Kind"]

CONVENTIONS: Final[tuple[ModuleType, ...]] = (
    genai,
    pydantic_ai,
    google_adk,
    vercel_ai_sdk,
    openllmetry,
    openinference,
    logfire,
    langsmith,
    mcp,
    observability,
    partial_spans,
)
"""In the order in which their spellings of one field count."""


def _attributes() -> dict[str, tuple[str, ...]]:
    joined: dict[str, tuple[str, ...]] = {}
    for convention in CONVENTIONS:
        for field, spellings in convention.ATTRIBUTES.items():
            joined[field] = joined.get(field, ()) + spellings
    return joined


def _joined(table: str) -> dict[str, Kind]:
    return {key: kind for one in CONVENTIONS for key, kind in getattr(one, table, {}).items()}


ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = _attributes()
"""Our field -> the attribute names it is read from, the best first."""
OPERATIONS: Final[Mapping[str, Kind]] = _joined("OPERATIONS")
"""``gen_ai.operation.name``; one that is not here (embeddings, create_agent, …) is nothing an agent did."""
MARKERS: Final[Mapping[str, Kind]] = _joined("MARKERS")
SPAN_NAMES: Final[tuple[tuple[str, Kind], ...]] = tuple(
    row for one in CONVENTIONS for row in getattr(one, "SPAN_NAMES", ())
)
SCOPES: Final[tuple[str, ...]] = tuple(scope for one in CONVENTIONS for scope in getattr(one, "SCOPES", ()))
_BARE_SPAN_NAMES: Final = _joined("BARE_SPAN_NAMES")
CONTENT_EVENTS: Final[Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]]] = {
    name: fields for one in CONVENTIONS for name, fields in getattr(one, "CONTENT_EVENTS", {}).items()
}
NO_WORK: Final[frozenset[str]] = frozenset(
    value for one in CONVENTIONS for value in getattr(one, "NO_WORK", ())
)
_FIELD: Final = re.compile(r"\{([^{}!:]+)(?:![rs])?\}")

_WORDS: Final = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])")
_NOUNS: Final = {
    "agent": Kind.AGENT,
    "llm": Kind.LLM,
    "model": Kind.LLM,
    "chat": Kind.LLM,
    "completion": Kind.LLM,
    "generation": Kind.LLM,
    "tool": Kind.TOOL,
    "function": Kind.TOOL,
}
_VERBS: Final = frozenset(
    f"{verb}{ending}"
    for verb, endings in {
        "call": ("", "ing"),
        "run": ("", "ning"),
        "invo": ("ke", "king", "cation"),
        "execut": ("e", "ing", "ion"),
        "request": ("",),
        "use": ("",),
    }.items()
    for ending in endings
)
_LONGEST_WORDS: Final = 40


def kind_of(operation: str, marker: str, name: str) -> Kind | None:
    """
    Say what a span is, or None if it is nothing an agent did.

    Args:
        operation: Its ``gen_ai.operation.name``, or "".
        marker: What another convention marks it with, or "".
        name: The span's name, asked only if neither of the others is there.
    """
    if operation:
        return OPERATIONS.get(operation) or _kind_in_words(operation)
    if marker:
        marker = marker.strip('"').lower()
        kind = MARKERS.get(marker) or _kind_in_words(marker)
        if kind is not None or marker in NO_WORK:
            return kind
    for prefix, kind in SPAN_NAMES:
        if name.startswith(prefix):
            return kind
    return _BARE_SPAN_NAMES.get(name) or _kind_in_words(name.partition(" ")[0], is_name=True)


@lru_cache(maxsize=4_096)
def _kind_in_words(text: str, *, is_name: bool = False) -> Kind | None:
    """
    Return the kind that words of no known convention name: ``llm_call``, ``tool.execution``, ``CHAT_MODEL``.

    They are words for one kind and for doing it, and no others. Of a span's name, one of each: other
    things are named "model" or "agent", too.
    """
    if len(text) > _LONGEST_WORDS:
        return None
    words = [word.lower() for word in _WORDS.findall(text)]
    kinds = {_NOUNS[word] for word in words if word in _NOUNS}
    verbs = sum(word in _VERBS for word in words)
    if len(kinds) != 1 or any(word not in _NOUNS and word not in _VERBS for word in words):
        return None
    return kinds.pop() if verbs or not is_name else None


def named_in(name: str) -> str:
    """Return the thing a span's name names (``execute_tool search`` -> ``search``), or ""."""
    for prefix, _ in SPAN_NAMES:
        if name.startswith(prefix):
            thing = name[len(prefix) :].strip(" '\"")
            return "" if _FIELD.fullmatch(thing) else thing
    head, _, thing = name.partition(" ")
    return thing.strip(" '\"") if _kind_in_words(head, is_name=True) else ""


def fill_template(name: str, attribute: Callable[[str], str]) -> str:
    """
    Return the name of a span with the fields of a template filled: ``Agent run: {name!r}``.

    Args:
        name: The span's name.
        attribute: Returns the span's attribute of a name, or "": the field is left as it is.
    """
    return _FIELD.sub(lambda field: attribute(field[1]) or field[0], name)
