"""What belongs to one session is in one partition, whichever process receives it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from queenright.runtime.events import AgentEvent
from queenright.server.cluster.keys import (
    partition_of,
    partition_of_agent,
    partition_of_hook,
    split_request,
)
from queenright.server.otlp.decode import decode_logs, decode_spans
from queenright.server.otlp.encoding import MediaType, parse_message
from queenright.server.otlp.errors import RejectedRequestError
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.batch import Batch
from tests.clients.fixtures import BEGAN, Record, fixture_paths
from tests.clients.fixtures import load_fixture as load_client
from tests.frameworks.fixtures import FOLDER
from tests.frameworks.fixtures import load_fixture as load_framework
from tests.server.telemetry.replay import LATER, take

REQUESTS: dict[str, tuple[type[Any], Any]] = {
    "/v1/traces": (ExportTraceServiceRequest, decode_spans),
    "/v1/logs": (ExportLogsServiceRequest, decode_logs),
}
RECORDINGS = [*fixture_paths(), *sorted(FOLDER.glob("*/*.jsonl"))]


def events_of(records: Sequence[tuple[float, str, Any]]) -> list[AgentEvent]:
    """Return the events of requests; their bodies are protobuf, or the JSON of hook calls."""
    assembler, events = Assembler(), list[AgentEvent]()
    for at, path, body in [
        *records,
        (max((at for at, _, _ in records), default=0.0) + LATER, "/v1/traces", b""),
    ]:
        if path in REQUESTS:
            message, decode = REQUESTS[path]
            batch: Batch = decode(message.FromString(body), assembler, BEGAN + at)
        else:
            batch = take(Record(at, path, body), assembler)
        assembler.duplicates.finish_storing(batch.identities, stored=True)
        events += batch.events
    return events


def bodies_of(records: Sequence[Record]) -> Iterator[tuple[float, str, Any]]:
    for record in records:
        body = record.body
        if record.path in REQUESTS:
            message = parse_message(json.dumps(body).encode(), MediaType.JSON, REQUESTS[record.path][0])
            body = message.SerializeToString()
        yield record.at, record.path, body


def happened(events: Sequence[AgentEvent]) -> Counter[tuple[Any, ...]]:
    return Counter((event.type, event.agent_id, event.session_id, event.time) for event in events)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_partitions_make_the_same_sessions_of_a_recording_as_one_service(path: Path) -> None:
    """B116: each partition is assembled by itself."""
    load = load_client if path.suffix == ".json" else load_framework
    records = list(bodies_of(load(path).records))
    whole = happened(events_of(records))
    for count in (2, 5, 64):
        parts: dict[int, list[tuple[float, str, Any]]] = {}
        for at, name, body in records:
            if name in REQUESTS:
                for number, part in split_request(name, body, count).items():
                    parts.setdefault(number, []).append((at, name, part))
            elif name.startswith("/hooks/"):
                number = partition_of_hook(json.dumps(body).encode(), count)
                parts.setdefault(number, []).append((at, name, body))
        assert sum((happened(events_of(part)) for part in parts.values()), Counter()) == whole


@given(key=st.text(max_size=50), count=st.integers(1, 64))
def test_key_is_in_one_of_the_partitions(key: str, count: int) -> None:
    assert 0 <= partition_of(key, count) < count


def test_partition_of_a_key_never_changes() -> None:
    """Another version of Queenright in the same cluster, or the next one, has to agree."""
    assert [partition_of_agent(name, 64) for name in ("researcher", "writer", "")] == [31, 22, 4]


def test_agent_is_in_the_partition_of_the_service_with_its_name() -> None:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    attribute = resource.resource.attributes.add(key="service.name")
    attribute.value.string_value = "researcher"
    resource.scope_spans.add().spans.add(name="work")
    body = request.SerializeToString()
    assert split_request("/v1/traces", body, 64) == {partition_of_agent("researcher", 64): body}


@pytest.mark.parametrize("body", [b"", b"\x0a\x00", b"[]", b'{"session_id": 7}', b"\xff"])
def test_hook_call_without_a_session_is_in_the_first_partition(body: bytes) -> None:
    assert partition_of_hook(body, 8) == 0


def test_damaged_request_is_refused() -> None:
    with pytest.raises(RejectedRequestError):
        split_request("/v1/traces", b"\x0a\xff", 8)


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/logs", "/v1/metrics"])
def test_request_without_records_stays_whole(path: str) -> None:
    assert split_request(path, b"", 8) == {0: b""}
