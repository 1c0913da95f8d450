"""
Dialects: the field names of records. Span conventions share a table, and each coding agent has a module.

The tables of the span conventions are in `queenright.instrumentation.conventions`, because agent processes
read them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from queenright.instrumentation import conventions
from queenright.server.telemetry.client import Client
from queenright.server.telemetry.dialects import claude_code, codex, gemini_cli, queenright
from queenright.server.telemetry.kind import ObservationKind

Fields = dict[str, AnyValue]
"""Attributes by field name."""

CLIENTS: Final[tuple[Client, ...]] = (claude_code.CLIENT, codex.CLIENT, gemini_cli.CLIENT)
"""The supported coding agents."""
CLIENT_NAMES: Final = frozenset(client.name for client in CLIENTS)
COST_REPORTING_CLIENTS: Final = frozenset(client.name for client in CLIENTS if client.reports_cost)
CLIENT_OF_LOGS: Final[Mapping[str, Client]] = {client.log_scope: client for client in CLIENTS}
CLIENT_OF_SPANS: Final[Mapping[str, Client]] = {c.span_scope: c for c in CLIENTS if c.span_scope}


def _collect_attributes() -> dict[str, tuple[str, ...]]:
    attributes: dict[str, tuple[str, ...]] = dict(queenright.ATTRIBUTES)
    for table in (conventions.ATTRIBUTES, *(client.attributes for client in CLIENTS)):
        for field, spellings in table.items():
            attributes[field] = attributes.get(field, ()) + spellings
    return attributes


ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = _collect_attributes()
"""The attribute names of each field, best first."""
_OBSERVATION_KINDS: Final = {kind: ObservationKind(kind.value) for kind in conventions.Kind}

LOOKUP: Final[Mapping[str, tuple[str, bool]]] = {
    name: (field, name == spellings[0]) for field, spellings in ATTRIBUTES.items() for name in spellings
}
"""The field of each attribute, and whether the attribute is the preferred spelling."""


def read_fields(attributes: Iterable[KeyValue]) -> Fields:
    """Return the known attributes by field name. The preferred spelling wins."""
    fields: Fields = {}
    lookup = LOOKUP.get
    for attribute in attributes:
        entry = lookup(attribute.key)
        if entry is not None:
            field, is_preferred = entry
            if is_preferred or field not in fields:
                fields[field] = attribute.value
    return fields


def classify_work(operation: str, marker: str, name: str) -> ObservationKind | None:
    """Return the kind of a span; None if it is not an agent's work. See `conventions.classify_span`."""
    kind = conventions.classify_span(operation, marker, name)
    return None if kind is None else _OBSERVATION_KINDS[kind]
