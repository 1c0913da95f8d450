"""
Which partition of a cluster telemetry belongs to. Pure.

What the assembler makes one session of must be in one partition, whichever process receives it. A coding
agent sends telemetry and hook calls that share only the id of the session, so that is their key. The spans of
any other agent share the service that sent them: a span inside a trace may name neither agent nor session.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import orjson
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from queenright.instrumentation import names
from queenright.server.otlp.protobuf_split import fields_in
from queenright.server.telemetry.client import Client
from queenright.server.telemetry.dialects import CLIENT_OF_LOGS, CLIENT_OF_SPANS
from queenright.server.telemetry.process import UNKNOWN_SERVICE
from queenright.server.telemetry.values import id_in, text_of

_RESOURCES: Final = 1
"""The number of the resources' field in a request, and of the resource in each."""
_SCOPES: Final = 2
"""The number of the scopes' field below a resource."""
_SESSIONS: Final = ("session.id", "conversation.id", names.GEN_AI_CONVERSATION_ID)
"""The attributes of a coding agent's records that name its session."""


class _Signal(NamedTuple):
    """How requests of one kind are built, and what names the records of coding agents."""

    request: Any
    resources: str
    scopes: str
    records: str
    clients: Mapping[str, Client]
    """By the scope of their records."""


_SIGNALS: Final[Mapping[str, _Signal]] = {
    "/v1/traces": _Signal(
        ExportTraceServiceRequest, "resource_spans", "scope_spans", "spans", CLIENT_OF_SPANS
    ),
    "/v1/logs": _Signal(
        ExportLogsServiceRequest, "resource_logs", "scope_logs", "log_records", CLIENT_OF_LOGS
    ),
}


def partition_of(key: str, count: int) -> int:
    """Return the partition of a key, of ``count``. It is the same in every process and version."""
    return int.from_bytes(blake2b(key.encode(errors="replace"), digest_size=8).digest()) % count


def partition_of_agent(agent_id: str, count: int) -> int:
    """Return the partition of an agent whose service has its name."""
    return partition_of(_service_key("", agent_id), count)


def partition_of_hook(body: bytes, count: int) -> int:
    """Return the partition of a hook call of a coding agent; 0 if it names no session."""
    try:
        session = orjson.loads(body).get("session_id")
    except (ValueError, AttributeError):
        return 0
    return partition_of(_session_key(id_in(session)), count) if isinstance(session, str) else 0


def split_request(path: str, body: bytes, count: int) -> Mapping[int, bytes]:
    """
    Return the parts of a request by partition, in the order of its records.

    Args:
        path: The path of the request, such as ``/v1/traces``.
        body: Its body, as protobuf.
        count: The number of partitions.

    Raises:
        RejectedRequestError: The body is no valid protobuf message (400).
    """
    signal = _SIGNALS.get(path)
    parts: dict[int, bytearray] = defaultdict(bytearray)
    for number, begin, value, end, has_length in fields_in(body, 0, len(body)):
        if number != _RESOURCES or not has_length:
            continue
        key, scopes = _read_resource(body, value, end)
        if signal is not None and not scopes.isdisjoint(signal.clients):
            for session, piece in _split_by_session(signal, body[begin:end]):
                parts[partition_of(_session_key(session) if session else key, count)] += piece
        else:
            parts[partition_of(key, count)] += body[begin:end]
    return {place: bytes(part) for place, part in parts.items()} or {0: body}


def _read_resource(body: bytes, at: int, end: int) -> tuple[str, set[str]]:
    """Return the key of a resource, and the names of the scopes below it."""
    key, scopes = _service_key("", ""), set[str]()
    for number, _, value, stop, has_length in fields_in(body, at, end):
        if number == _RESOURCES and has_length:
            attributes = {a.key: a.value for a in Resource.FromString(body[value:stop]).attributes}
            namespace = text_of(attributes.get("service.namespace"))
            key = _service_key(namespace, text_of(attributes.get(names.SERVICE_NAME)))
        elif number == _SCOPES and has_length:
            for inner, _, first, last, is_message in fields_in(body, value, stop):
                if inner == 1 and is_message:
                    scopes.add(InstrumentationScope.FromString(body[first:last]).name)
                    break
    return key, scopes


def _split_by_session(signal: _Signal, body: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield a request of one resource in parts by the session that its records name; empty: none."""
    [resource] = getattr(signal.request.FromString(body), signal.resources)
    parts: dict[str, Any] = {}
    for scope in getattr(resource, signal.scopes):
        is_client = scope.scope.name in signal.clients
        added: dict[str, Any] = {}
        for record in getattr(scope, signal.records):
            session = _session_of(record) if is_client else ""
            if session not in added:
                part = parts.get(session)
                if part is None:
                    parts[session] = part = signal.request()
                    _add_without(getattr(part, signal.resources), resource, signal.scopes)
                added[session] = _add_without(
                    getattr(getattr(part, signal.resources)[0], signal.scopes), scope, signal.records
                )
            getattr(added[session], signal.records).append(record)
    for session, part in parts.items():
        yield session, part.SerializeToString()


def _add_without(messages: Any, message: Any, field: str) -> Any:
    """Add a copy of a message without the values of one field; return it."""
    added = messages.add()
    for descriptor, value in message.ListFields():
        if descriptor.name == field:
            continue
        if descriptor.message_type is not None:
            getattr(added, descriptor.name).CopyFrom(value)
        else:
            setattr(added, descriptor.name, value)
    return added


def _session_of(record: Any) -> str:
    found = {attribute.key: attribute.value for attribute in record.attributes if attribute.key in _SESSIONS}
    return next((id_in(found[name].string_value) for name in _SESSIONS if name in found), "")


def _session_key(session: str) -> str:
    return f"session {session}"


def _service_key(namespace: str, service: str) -> str:
    return f"service {namespace}/{service or UNKNOWN_SERVICE}"
