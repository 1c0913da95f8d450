"""
The conventions by which libraries name spans and their attributes: one module each, with its vendor's table.

A span is read by all of them at one time (two instrumentations often write on one span), so their tables
are joined here. A module may have

* ``ATTRIBUTES``: our field, and the attributes it is read from, the best first;
* ``OPERATIONS``: a ``gen_ai.operation.name`` and the kind of work it names;
* ``MARKERS``: a value of its ``marker`` attribute, in lower case, and the kind of work it names;
* ``SPAN_NAMES``: how the name of a span begins whose kind nothing else says; what follows names the thing;
* ``BARE_SPAN_NAMES``: a span's whole name, likewise;
* ``TEMPLATES``: how a template of names begins that is still without its field;
* ``SCOPES``: how the scopes begin all of whose spans are an agent's work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import ModuleType
from typing import Final

from queenright.instrumentation.conventions import (
    genai,
    google_adk,
    logfire,
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
_TEMPLATES: Final = _joined("TEMPLATES")
_TEMPLATE: Final = re.compile(r"([^{}]+) \{([^{}!:]+)(?:!r)?\}")


def kind_of(operation: str, marker: str, name: str) -> Kind | None:
    """
    Say what a span is, or None if it is nothing an agent did.

    Args:
        operation: Its ``gen_ai.operation.name``, or "".
        marker: What another convention marks it with, or "".
        name: The span's name, asked only if neither of the others is there.
    """
    if operation:
        return OPERATIONS.get(operation)
    if marker:
        return MARKERS.get(marker.lower())
    for prefix, kind in SPAN_NAMES:
        if name.startswith(prefix):
            return kind
    return _BARE_SPAN_NAMES.get(name)


def named_in(name: str) -> str:
    """Return the thing a span's name names (``execute_tool search`` -> ``search``), or ""."""
    for prefix, _ in SPAN_NAMES:
        if name.startswith(prefix):
            return name[len(prefix) :].strip()
    return ""


def template_in(name: str) -> tuple[Kind, str] | None:
    """Return what a span is whose name is a known template, and the attribute that fills it; else None."""
    found = _TEMPLATE.fullmatch(name)
    if found is None or (kind := _TEMPLATES.get(found[1])) is None:
        return None
    return kind, found[2]
