"""Which partition a request belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def partition_of(key: str, count: int) -> int:
    """Return the partition of a key."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) % count


def split_request(path: str, body: bytes, count: int) -> Mapping[int, bytes]:
    """Return the parts of a request, by partition."""
    request = ExportTraceServiceRequest.FromString(body)
    found = [
        value.value.string_value
        for spans in request.resource_spans
        for value in spans.resource.attributes
        if value.key == "service.name"
    ]
    return {partition_of(found[0] if found else "", count): body}


def partition_of_hook(path: str, body: bytes, count: int) -> int:
    """Return the partition of a hook call."""
    return 0


def partition_of_agent(agent_id: str, count: int) -> int:
    """Return the partition that an agent's sessions are probably in."""
    return partition_of(agent_id, count)
