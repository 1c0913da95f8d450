"""
Dialects: how the conventions that agents write in name things. One module each, with its vendor's table.

A span is read by all of them at one time (two instrumentations often write on one span), so their tables
are joined here. A module may have

* ``ATTRIBUTES``: our field, and the attributes it is read from, the best first;
* ``OPERATIONS``: a ``gen_ai.operation.name`` and the kind of work it names;
* ``MARKERS``: a value of its ``marker`` attribute, in lower case, and the kind of work it names;
* ``SPAN_NAMES``: how the name of a span begins whose kind nothing else says; what follows names the thing;
* ``BARE_SPAN_NAMES``: a span's whole name, likewise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from queenright.server.telemetry.client import Client
from queenright.server.telemetry.dialects import (
    claude_code,
    genai,
    google_adk,
    openinference,
    openllmetry,
    pydantic_ai,
    queenright,
    vercel_ai_sdk,
)
from queenright.server.telemetry.kind import Kind

Fields = dict[str, AnyValue]
"""Attributes by our name for them."""

DIALECTS: Final[tuple[ModuleType, ...]] = (
    queenright,
    genai,
    pydantic_ai,
    google_adk,
    vercel_ai_sdk,
    openllmetry,
    openinference,
    claude_code,
)
"""In the order in which their spellings of one field count."""


CLIENTS: Final[tuple[Client, ...]] = (claude_code.CLIENT,)
"""The coding agents that are understood by their log records, hooks and spans."""
CLIENT_OF_LOGS: Final[Mapping[str, Client]] = {client.log_scope: client for client in CLIENTS}
CLIENT_OF_SPANS: Final[Mapping[str, Client]] = {c.span_scope: c for c in CLIENTS if c.span_scope}


def _attributes() -> dict[str, tuple[str, ...]]:
    joined: dict[str, tuple[str, ...]] = {}
    for dialect in DIALECTS:
        for field, spellings in dialect.ATTRIBUTES.items():
            joined[field] = joined.get(field, ()) + spellings
    return joined


def _joined(table: str) -> dict[str, Kind]:
    return {key: kind for dialect in DIALECTS for key, kind in getattr(dialect, table, {}).items()}


ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = _attributes()
"""Our field -> the attribute names it is read from, the best first."""
OPERATIONS: Final[Mapping[str, Kind]] = _joined("OPERATIONS")
"""``gen_ai.operation.name``; one that is not here (embeddings, create_agent, …) is nothing an agent did."""
MARKERS: Final[Mapping[str, Kind]] = _joined("MARKERS")
SPAN_NAMES: Final[tuple[tuple[str, Kind], ...]] = tuple(
    row for dialect in DIALECTS for row in getattr(dialect, "SPAN_NAMES", ())
)
_BARE_SPAN_NAMES: Final = _joined("BARE_SPAN_NAMES")

LOOKUP: Final[Mapping[str, tuple[str, bool]]] = {
    name: (field, name == spellings[0]) for field, spellings in ATTRIBUTES.items() for name in spellings
}
"""Attribute name -> our field, and whether it is the best spelling, which wins over the others."""


def fields_of(attributes: Iterable[KeyValue]) -> Fields:
    """Return the attributes that mean something to us, by our name for them; the current spelling wins."""
    found: Fields = {}
    lookup = LOOKUP.get
    for attribute in attributes:
        entry = lookup(attribute.key)
        if entry is not None:
            field, current = entry
            if current or field not in found:
                found[field] = attribute.value
    return found


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
