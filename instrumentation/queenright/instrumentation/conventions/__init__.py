"""
Naming conventions of spans and attributes: the tables of all vendors, merged.

All conventions apply to every span, because two instrumentations often write to the same span.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final, TypeVar

from queenright.instrumentation.conventions.vendors import CONVENTIONS, Kind

__all__ = ["Kind"]

T = TypeVar("T")


def _merge_attributes() -> dict[str, tuple[str, ...]]:
    names_by_key: dict[str, tuple[str, ...]] = {}
    for convention in CONVENTIONS:
        for field, spellings in convention.attributes.items():
            names_by_key[field] = names_by_key.get(field, ()) + spellings
    return names_by_key


def _merge_tables(tables: Iterable[Mapping[str, T]]) -> dict[str, T]:
    return {key: value for table in tables for key, value in table.items()}


ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = _merge_attributes()
"""Our field -> attribute names to read it from, in order of preference."""
OPERATIONS: Final[Mapping[str, Kind]] = _merge_tables(c.operations for c in CONVENTIONS)
"""``gen_ai.operation.name`` -> kind. Other operations (embeddings, create_agent, …) are not agent work."""
MARKERS: Final[Mapping[str, Kind]] = _merge_tables(c.markers for c in CONVENTIONS)
SPAN_NAMES: Final = tuple(row for convention in CONVENTIONS for row in convention.span_names)
SCOPES: Final = tuple(scope for convention in CONVENTIONS for scope in convention.scopes)
_BARE_SPAN_NAMES: Final = _merge_tables(c.bare_span_names for c in CONVENTIONS)
CONTENT_EVENTS: Final = _merge_tables(c.content_events for c in CONVENTIONS)
NO_WORK: Final = frozenset(value for convention in CONVENTIONS for value in convention.no_work)
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
_MAX_LENGTH: Final = 40


def classify_span(operation: str, marker: str, name: str) -> Kind | None:
    """
    Return the kind of a span, or None if it is not an agent's work.

    Args:
        operation: Its ``gen_ai.operation.name``, or "".
        marker: The marker attribute of another convention, or "".
        name: The span's name, used only if neither of the others gives a kind.
    """
    if operation:
        return OPERATIONS.get(operation) or _guess_kind(operation)
    if marker:
        marker = marker.strip('"').lower()
        kind = MARKERS.get(marker) or _guess_kind(marker)
        if kind is not None or marker in NO_WORK:
            return kind
    for prefix, kind in SPAN_NAMES:
        if name.startswith(prefix):
            return kind
    return _BARE_SPAN_NAMES.get(name) or _guess_kind(name.partition(" ")[0], is_name=True)


@lru_cache(maxsize=4_096)
def _guess_kind(text: str, *, is_name: bool = False) -> Kind | None:
    """
    Guess the kind from words outside any known convention: ``llm_call``, ``tool.execution``, ``CHAT_MODEL``.

    All words must be nouns of one kind or verbs for running it. A span's name needs both, because "model"
    or "agent" alone may mean something else.
    """
    if len(text) > _MAX_LENGTH:
        return None
    words = [word.lower() for word in _WORDS.findall(text)]
    kinds = {_NOUNS[word] for word in words if word in _NOUNS}
    verbs = sum(word in _VERBS for word in words)
    if len(kinds) != 1 or any(word not in _NOUNS and word not in _VERBS for word in words):
        return None
    return kinds.pop() if verbs or not is_name else None


def extract_subject(name: str) -> str:
    """Return the subject of a span's name (``execute_tool search`` -> ``search``), or ""."""
    for prefix, _ in SPAN_NAMES:
        if name.startswith(prefix):
            subject = name[len(prefix) :].strip(" '\"")
            return "" if _FIELD.fullmatch(subject) else subject
    head, _, subject = name.partition(" ")
    return subject.strip(" '\"") if _guess_kind(head, is_name=True) else ""


def fill_template(name: str, attribute: Callable[[str], str]) -> str:
    """
    Fill the template fields in a span's name, such as ``Agent run: {name!r}``.

    Args:
        name: The span's name.
        attribute: Returns the span's attribute with a name, or "" to keep the field unchanged.
    """
    return _FIELD.sub(lambda field: attribute(field[1]) or field[0], name)
