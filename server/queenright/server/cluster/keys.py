"""
The partition of a cluster to which telemetry belongs. Pure.

All telemetry of a session must be in one partition, whichever process receives it:

* Records and hook calls of a coding agent share only the session id, so it is their key.
* All records of Queenright's own tracer name the agent, so its name is their key.
* Spans of other agents may name neither agent nor session; they share only the process that sends them. Their
  key is the agent of the resource, otherwise the service, so a process that continues the session of another
  is in the same partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from queenright.instrumentation import names
from queenright.server.otlp.errors import too_many_error
from queenright.server.otlp.protobuf_split import MAX_GROUPS, encode_field_header, iter_fields
from queenright.server.telemetry.client import Client
from queenright.server.telemetry.dialects import CLIENT_OF_LOGS, CLIENT_OF_SPANS
from queenright.server.telemetry.logs import PARTIAL_EVENT, read_partial_span_resource
from queenright.server.telemetry.process import UNKNOWN_SERVICE
from queenright.server.telemetry.values import id_in, text_of
from queenright.server.webhooks.hooks import parse_call

_RESOURCES: Final = 1
"""The field number of the resources in a request, and of the resource in each."""
_SCOPES: Final = 2
"""The field number of the scopes in a resource."""
_RECORDS: Final = 2
"""The field number of the records in a scope."""
_SESSIONS: Final = ("session.id", "conversation.id", names.GEN_AI_CONVERSATION_ID)
"""The attributes with the session id in records of coding agents."""
_SENDER: Final = (
    "service.namespace",
    names.SERVICE_NAME,
    names.GEN_AI_AGENT_NAME,
    names.DISTRIBUTION_NAME,
)
"""The resource attributes that are read."""
_PARTIAL: Final = PARTIAL_EVENT.encode()


class _Signal(NamedTuple):
    """The message types of one kind of request, and the scopes of coding agents."""

    request: Any
    resources: str
    scopes: str
    records: str
    clients: Mapping[str, Client]
    """Coding agents, by the scope of their records."""


_SIGNALS: Final[Mapping[str, _Signal]] = {
    "/v1/traces": _Signal(
        ExportTraceServiceRequest, "resource_spans", "scope_spans", "spans", CLIENT_OF_SPANS
    ),
    "/v1/logs": _Signal(
        ExportLogsServiceRequest, "resource_logs", "scope_logs", "log_records", CLIENT_OF_LOGS
    ),
}


class _Sender(NamedTuple):
    """What a resource states about its records."""

    key: str
    """The key of records without a more specific key."""
    is_own: bool
    """Whether all records come from Queenright's own tracer."""


def partition_of(key: str, count: int) -> int:
    """Return the partition of a key among ``count``. It is the same in every process and version."""
    return int.from_bytes(blake2b(key.encode(errors="replace"), digest_size=8).digest()) % count


def partition_of_agent(name: str, namespace: str = "", *, count: int) -> int:
    """Return the partition of an agent that sends its name, or of the service with this name."""
    return partition_of(_service_key(namespace, name), count)


def partition_of_hook(body: bytes, count: int) -> int:
    """Return the partition of a hook call of a coding agent; 0 if the call has no session id."""
    try:
        session = id_in(parse_call(body).get("session_id"))
    except ValueError:
        return 0
    return partition_of(_session_key(session), count) if session else 0


def split_request(path: str, body: bytes, count: int) -> Mapping[int, bytes]:
    """
    Split a request by partition, keeping the order of its records.

    The longest part is longer than the body by at most one copy of each resource and scope.

    Args:
        path: The path of the request, such as ``/v1/traces``.
        body: Its body, as protobuf.
        count: The number of partitions.

    Raises:
        RejectedRequestError: The body is not a valid protobuf message (400), or has too many groups (413).
    """
    signal = _SIGNALS.get(path)
    parts: dict[int, bytearray] = defaultdict(bytearray)
    groups = 0
    for number, begin, value, end, has_length in iter_fields(body, 0, len(body)):
        if number != _RESOURCES or not has_length:
            continue
        sender, scopes = _read_group(body, value, end)
        groups += 1 + len(scopes)
        if groups > MAX_GROUPS:
            raise too_many_error("resources and scopes", MAX_GROUPS)
        piece = body[begin:end]
        if signal is not None and (
            sender.is_own
            or not signal.clients.keys().isdisjoint(scopes)
            or (signal.clients is CLIENT_OF_LOGS and _PARTIAL in piece)
        ):
            for place, part in _split_by_record(signal, piece, sender, count):
                parts[place] += part
        else:
            parts[partition_of(sender.key, count)] += piece
    return {place: bytes(part) for place, part in parts.items()} or {0: body}


def _read_group(body: bytes, at: int, end: int) -> tuple[_Sender, list[str]]:
    """Return what a resource states, and the names of its scopes."""
    sender, scopes = _parse_sender(Resource()), list[str]()
    for number, _, value, stop, has_length in iter_fields(body, at, end):
        if number == _RESOURCES and has_length:
            sender = _parse_sender(Resource.FromString(body[value:stop]))
        elif number == _SCOPES and has_length:
            scopes.append(_read_scope(body, value, stop))
    return sender, scopes


def _read_scope(body: bytes, at: int, end: int) -> str:
    for number, _, value, stop, has_length in iter_fields(body, at, end):
        if number == 1 and has_length:
            return InstrumentationScope.FromString(body[value:stop]).name
    return ""


def _parse_sender(resource: Resource) -> _Sender:
    attributes = {attribute.key: attribute.value for attribute in resource.attributes}
    namespace, service, agent, distribution = (text_of(attributes.get(name)) for name in _SENDER)
    key = _service_key("", agent) if agent else _service_key(namespace, service)
    return _Sender(key, distribution == names.DISTRIBUTION)


def _split_by_record(
    signal: _Signal, piece: bytes, sender: _Sender, count: int
) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of a request with one resource, by the keys of its records."""
    [resource] = getattr(signal.request.FromString(piece), signal.resources)
    places = [_assign_records(signal, scope, sender, count) for scope in getattr(resource, signal.scopes)]
    distinct = {place for found in places for place in found}
    if len(distinct) < 2:
        yield distinct.pop() if distinct else partition_of(sender.key, count), piece
        return
    [(_, _, value, end, _)] = iter_fields(piece, 0, len(piece))
    rest, scopes = _split_children(piece, value, end, _SCOPES)
    parts: dict[int, bytearray] = {}
    for (_, first, last), found in zip(scopes, places, strict=True):
        scope_fields, records = _split_children(piece, first, last, _RECORDS)
        by_place: dict[int, bytearray] = {}
        for (begin, _, stop), place in zip(records, found, strict=True):
            if place not in by_place:
                by_place[place] = bytearray(scope_fields)
            by_place[place] += piece[begin:stop]
        for place, part in by_place.items():
            if place not in parts:
                parts[place] = bytearray(rest)
            parts[place] += encode_field_header(_SCOPES, len(part)) + part
    for place, part in parts.items():
        yield place, encode_field_header(_RESOURCES, len(part)) + part


def _split_children(body: bytes, at: int, end: int, number: int) -> tuple[bytes, list[tuple[int, int, int]]]:
    """Return a message without the fields of one number, and the offsets of these fields, values and ends."""
    rest, children = bytearray(), list[tuple[int, int, int]]()
    for found, begin, value, stop, has_length in iter_fields(body, at, end):
        if found == number and has_length:
            children.append((begin, value, stop))
        else:
            rest += body[begin:stop]
    return bytes(rest), children


def _assign_records(signal: _Signal, scope: Any, sender: _Sender, count: int) -> list[int]:
    """Return the partition of each record of a scope."""
    name_of: Callable[[Any], str]
    key_of: Callable[[str], str]
    if scope.scope.name in signal.clients:
        name_of, key_of = _find_session, _key_of_session
    elif sender.is_own:
        name_of, key_of = _find_agent, _key_of_agent
    else:
        name_of, key_of = _find_partial_span, str
    by_name: dict[str, int] = {"": partition_of(sender.key, count)}
    found = []
    for record in getattr(scope, signal.records):
        name = name_of(record)
        place = by_name.get(name)
        if place is None:
            by_name[name] = place = partition_of(key_of(name) or sender.key, count)
        found.append(place)
    return found


def _find_session(record: Any) -> str:
    """Return the session id in a record of a coding agent, or ""."""
    best, session = len(_SESSIONS), ""
    for attribute in record.attributes:
        key = attribute.key
        if key in _SESSIONS and _SESSIONS.index(key) < best:
            best, session = _SESSIONS.index(key), attribute.value.string_value
            if not best:
                break
    return session


def _find_agent(record: Any) -> str:
    """Return the agent in a record of Queenright's own tracer, or ""."""
    for attribute in record.attributes:
        if attribute.key == names.GEN_AI_AGENT_NAME:
            agent: str = attribute.value.string_value
            return agent
    return ""


def _find_partial_span(record: Any) -> str:
    """Return the key of the span that a log record refers to, or ""."""
    resource = read_partial_span_resource(record) if isinstance(record, LogRecord) else None
    return "" if resource is None else _parse_sender(resource).key


def _key_of_session(name: str) -> str:
    session = id_in(name)
    return _session_key(session) if session else ""


def _key_of_agent(name: str) -> str:
    agent = text_of(AnyValue(string_value=name))
    return _service_key("", agent) if agent else ""


def _session_key(session: str) -> str:
    return f"session {session}"


def _service_key(namespace: str, service: str) -> str:
    return f"service {namespace}/{service or UNKNOWN_SERVICE}"
