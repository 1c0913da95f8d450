"""
Find the partition of a cluster that telemetry belongs to. These functions are pure.

All telemetry of a session must be in one partition, regardless of the process that receives it:

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
from queenright.server.otlp.errors import make_too_many_error
from queenright.server.otlp.protobuf_split import MAX_GROUPS, encode_field_header, iter_fields
from queenright.server.telemetry.client import Client
from queenright.server.telemetry.dialects import CLIENT_OF_LOGS, CLIENT_OF_SPANS
from queenright.server.telemetry.logs import PARTIAL_EVENT, read_partial_span_resource
from queenright.server.telemetry.process import UNKNOWN_SERVICE
from queenright.server.telemetry.values import clean_id, read_text
from queenright.server.webhooks.hooks import parse_call

_RESOURCE_FIELD: Final = 1
"""The field number of the resources in a request, and of the resource in each."""
_SCOPE_FIELD: Final = 2
"""The field number of the scopes in a resource."""
_RECORD_FIELD: Final = 2
"""The field number of the records in a scope."""
_SESSION_ATTRIBUTES: Final = ("session.id", "conversation.id", names.GEN_AI_CONVERSATION_ID)
"""The attributes with the session id in records of coding agents."""
_SENDER_ATTRIBUTES: Final = (
    "service.namespace",
    names.SERVICE_NAME,
    names.GEN_AI_AGENT_NAME,
    names.DISTRIBUTION_NAME,
)
"""The resource attributes that are read."""
_PARTIAL_EVENT_BYTES: Final = PARTIAL_EVENT.encode()


class _Signal(NamedTuple):
    """The message types of a kind of request, and the scopes that coding agents use in it."""

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
    """The sender of a resource's records."""

    key: str
    """The key of records without a more specific key."""
    is_own: bool
    """Whether all records come from Queenright's own tracer."""


def compute_partition(key: str, count: int) -> int:
    """Return the partition of a key: from 0 to ``count`` - 1, the same in every process and version."""
    return int.from_bytes(blake2b(key.encode(errors="replace"), digest_size=8).digest()) % count


def find_agent_partition(name: str, namespace: str = "", *, count: int) -> int:
    """Return the partition of an agent, or of the service with this name and namespace."""
    return compute_partition(_make_service_key(namespace, name), count)


def find_hook_partition(body: bytes, count: int) -> int:
    """Return the partition of a hook call of a coding agent; 0 if the call has no session id."""
    try:
        session = clean_id(parse_call(body).get("session_id"))
    except ValueError:
        return 0
    return compute_partition(_make_session_key(session), count) if session else 0


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
        if number != _RESOURCE_FIELD or not has_length:
            continue
        sender, scopes = _read_group(body, value, end)
        groups += 1 + len(scopes)
        if groups > MAX_GROUPS:
            raise make_too_many_error("resources and scopes", MAX_GROUPS)
        piece = body[begin:end]
        if signal is not None and (
            sender.is_own
            or not signal.clients.keys().isdisjoint(scopes)
            or (signal.clients is CLIENT_OF_LOGS and _PARTIAL_EVENT_BYTES in piece)
        ):
            for partition, part in _split_by_record(signal, piece, sender, count):
                parts[partition] += part
        else:
            parts[compute_partition(sender.key, count)] += piece
    return {partition: bytes(part) for partition, part in parts.items()} or {0: body}


def _read_group(body: bytes, at: int, end: int) -> tuple[_Sender, list[str]]:
    """Return the sender of a resource, and the names of its scopes."""
    sender, scopes = _parse_sender(Resource()), list[str]()
    for number, _, value, stop, has_length in iter_fields(body, at, end):
        if number == _RESOURCE_FIELD and has_length:
            sender = _parse_sender(Resource.FromString(body[value:stop]))
        elif number == _SCOPE_FIELD and has_length:
            scopes.append(_read_scope(body, value, stop))
    return sender, scopes


def _read_scope(body: bytes, at: int, end: int) -> str:
    for number, _, value, stop, has_length in iter_fields(body, at, end):
        if number == 1 and has_length:
            return InstrumentationScope.FromString(body[value:stop]).name
    return ""


def _parse_sender(resource: Resource) -> _Sender:
    attributes = {attribute.key: attribute.value for attribute in resource.attributes}
    namespace, service, agent, distribution = (read_text(attributes.get(name)) for name in _SENDER_ATTRIBUTES)
    key = _make_service_key("", agent) if agent else _make_service_key(namespace, service)
    return _Sender(key, distribution == names.DISTRIBUTION)


def _split_by_record(
    signal: _Signal, piece: bytes, sender: _Sender, count: int
) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of a request with one resource, by the keys of its records."""
    [resource] = getattr(signal.request.FromString(piece), signal.resources)
    record_partitions = [
        _assign_records(signal, scope, sender, count) for scope in getattr(resource, signal.scopes)
    ]
    distinct_partitions = {
        partition for partitions_of_scope in record_partitions for partition in partitions_of_scope
    }
    if len(distinct_partitions) < 2:
        yield (
            distinct_partitions.pop() if distinct_partitions else compute_partition(sender.key, count),
            piece,
        )
        return
    [(_, _, value, end, _)] = iter_fields(piece, 0, len(piece))
    resource_header, scopes = _split_children(piece, value, end, _SCOPE_FIELD)
    parts: dict[int, bytearray] = {}
    for (_, first, last), partitions_of_scope in zip(scopes, record_partitions, strict=True):
        scope_fields, records = _split_children(piece, first, last, _RECORD_FIELD)
        scope_parts: dict[int, bytearray] = {}
        for (begin, _, stop), partition in zip(records, partitions_of_scope, strict=True):
            if partition not in scope_parts:
                scope_parts[partition] = bytearray(scope_fields)
            scope_parts[partition] += piece[begin:stop]
        for partition, part in scope_parts.items():
            if partition not in parts:
                parts[partition] = bytearray(resource_header)
            parts[partition] += encode_field_header(_SCOPE_FIELD, len(part)) + part
    for partition, part in parts.items():
        yield partition, encode_field_header(_RESOURCE_FIELD, len(part)) + part


def _split_children(body: bytes, at: int, end: int, number: int) -> tuple[bytes, list[tuple[int, int, int]]]:
    """Return a message without the fields of one number, and the offsets of these: begin, value and end."""
    header, children = bytearray(), list[tuple[int, int, int]]()
    for field_number, begin, value, stop, has_length in iter_fields(body, at, end):
        if field_number == number and has_length:
            children.append((begin, value, stop))
        else:
            header += body[begin:stop]
    return bytes(header), children


def _assign_records(signal: _Signal, scope: Any, sender: _Sender, count: int) -> list[int]:
    """Return the partition of each record of a scope."""
    read_name: Callable[[Any], str]
    make_key: Callable[[str], str]
    if scope.scope.name in signal.clients:
        read_name, make_key = _find_session, _clean_session_key
    elif sender.is_own:
        read_name, make_key = _find_agent, _clean_agent_key
    else:
        read_name, make_key = _find_partial_span, str
    partitions_by_name: dict[str, int] = {"": compute_partition(sender.key, count)}
    partitions = []
    for record in getattr(scope, signal.records):
        name = read_name(record)
        partition = partitions_by_name.get(name)
        if partition is None:
            partitions_by_name[name] = partition = compute_partition(make_key(name) or sender.key, count)
        partitions.append(partition)
    return partitions


def _find_session(record: Any) -> str:
    """Return the session id in a record of a coding agent, or ""."""
    best_index, session = len(_SESSION_ATTRIBUTES), ""
    for attribute in record.attributes:
        key = attribute.key
        if key in _SESSION_ATTRIBUTES and _SESSION_ATTRIBUTES.index(key) < best_index:
            best_index, session = _SESSION_ATTRIBUTES.index(key), attribute.value.string_value
            if not best_index:
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


def _clean_session_key(name: str) -> str:
    session = clean_id(name)
    return _make_session_key(session) if session else ""


def _clean_agent_key(name: str) -> str:
    agent = read_text(AnyValue(string_value=name))
    return _make_service_key("", agent) if agent else ""


def _make_session_key(session: str) -> str:
    return f"session {session}"


def _make_service_key(namespace: str, service: str) -> str:
    return f"service {namespace}/{service or UNKNOWN_SERVICE}"
