"""All telemetry of one session goes to one partition, whichever process receives it."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import CollectorRegistry

from queenright.instrumentation import Telemetry, Worker, names
from queenright.runtime.events import AgentEvent
from queenright.server.cluster.keys import (
    compute_partition,
    find_agent_partition,
    find_hook_partition,
    split_request,
)
from queenright.server.otlp.decode import decode_logs, decode_spans
from queenright.server.otlp.encoding import MediaType, parse_message
from queenright.server.otlp.errors import RejectedRequestError
from queenright.server.otlp.protobuf_split import MAX_GROUPS
from queenright.server.telemetry.assembler import Assembler
from queenright.server.telemetry.batch import Batch
from tests.clients.fixtures import BEGAN, Record, list_fixture_paths
from tests.clients.fixtures import load_fixture as load_client
from tests.frameworks.fixtures import FOLDER
from tests.frameworks.fixtures import load_fixture as load_framework
from tests.instrumentation.parts import Otlp
from tests.server.telemetry.replay import LATER, decode_record

REQUESTS: dict[str, tuple[type[Any], Any]] = {
    "/v1/traces": (ExportTraceServiceRequest, decode_spans),
    "/v1/logs": (ExportLogsServiceRequest, decode_logs),
}
OPEN_WORK = Path(__file__).parents[1] / "server/otlp/open_work"
RECORDINGS = [*list_fixture_paths(), *sorted(FOLDER.glob("*/*.jsonl")), *sorted(OPEN_WORK.glob("*.json"))]
PARTITION_COUNTS = (2, 5, 64)
HUGE_PARTITION_COUNT = 2**61 - 1
"""With so many partitions, each key has its own: keys that share a partition here always share one."""


def decode_events(records: Sequence[tuple[float, str, Any]]) -> list[AgentEvent]:
    """Return the events of requests. Their bodies are protobuf messages, or the JSON of hook calls."""
    assembler, events = Assembler(), list[AgentEvent]()
    for offset, path, body in [
        *records,
        (max((offset for offset, _, _ in records), default=0.0) + LATER, "/v1/traces", b""),
    ]:
        if path in REQUESTS:
            message, decode = REQUESTS[path]
            batch: Batch = decode(message.FromString(body), assembler, BEGAN + offset)
        else:
            batch = decode_record(Record(offset, path, body), assembler)
        assembler.duplicates.finish_storing(batch.identities, is_stored=True)
        events += batch.events
    return events


def iterate_request_bodies(records: Sequence[Record]) -> Iterator[tuple[float, str, Any]]:
    for record in records:
        body = record.body
        if record.path in REQUESTS:
            message = parse_message(json.dumps(body).encode(), MediaType.JSON, REQUESTS[record.path][0])
            body = message.SerializeToString()
        yield record.at, record.path, body


def count_events(events: Sequence[AgentEvent]) -> Counter[tuple[Any, ...]]:
    return Counter((event.type, event.agent_id, event.session_id, event.time) for event in events)


def load_recording(path: Path) -> list[tuple[float, str, Any]]:
    if path.parent == OPEN_WORK:
        requests = json.loads(path.read_text())
        records = [
            Record(float(index), request["path"], request["body"]) for index, request in enumerate(requests)
        ]
        return [
            (record.at, record.path, ParseDict(record.body, REQUESTS[record.path][0]()).SerializeToString())
            for record in records
        ]
    load_file = load_client if path.suffix == ".json" else load_framework
    return list(iterate_request_bodies(load_file(path).records))


@pytest.mark.parametrize(
    ("path", "count"),
    [
        pytest.param(
            path,
            count,
            id=f"{path.parent.name}-{path.stem}-{count}",
            # On each commit, one count per recording is enough.
            marks=() if count == PARTITION_COUNTS[number % len(PARTITION_COUNTS)] else pytest.mark.slow,
        )
        for number, path in enumerate(RECORDINGS)
        for count in PARTITION_COUNTS
    ],
)
def test_partitions_find_the_same_sessions_in_a_recording_as_one_service(path: Path, count: int) -> None:
    """B116: each partition has its own assembler."""
    check_partitions(load_recording(path), (count, HUGE_PARTITION_COUNT))


def test_partitions_find_the_same_sessions_of_instrumented_workers_as_one_service() -> None:
    """Two workers of one process, one inside the other; the outer one continues in another process."""
    receiver, registry = Otlp(), CollectorRegistry()
    for _ in range(2):
        telemetry = Telemetry(receiver.url)
        with Worker("planner", session_id="s", telemetry=telemetry, registry=registry) as planner:
            with (
                planner.step("plan"),
                Worker("writer", telemetry=telemetry, registry=registry) as writer,
                writer.step("write") as step,
                step.tool("search", {"q": 1}) as call,
            ):
                call.result("x")
            with planner.step("check") as step, step.tool("search", {"q": 2}) as call:
                call.result("y")
        telemetry.close()
    receiver.stop()
    records = [
        (time.time() - BEGAN + index, path, body) for index, (path, body) in enumerate(receiver.bodies)
    ]
    assert {event.agent_id for event in decode_events(records)} == {"planner", "writer"}
    check_partitions(records, (*PARTITION_COUNTS, HUGE_PARTITION_COUNT))


def check_partitions(records: Sequence[tuple[float, str, Any]], counts: Sequence[int]) -> None:
    expected_counts = count_events(decode_events(records))
    for count in counts:
        partition_records: dict[int, list[tuple[float, str, Any]]] = {}
        for offset, path, body in records:
            if path in REQUESTS:
                for number, split_body in split_request(path, body, count).items():
                    partition_records.setdefault(number, []).append((offset, path, split_body))
            elif path.startswith("/hooks/"):
                number = find_hook_partition(json.dumps(body).encode(), count)
                partition_records.setdefault(number, []).append((offset, path, body))
        assert (
            sum(
                (count_events(decode_events(split_body)) for split_body in partition_records.values()),
                Counter(),
            )
            == expected_counts
        )


@given(key=st.text(max_size=50), count=st.integers(1, 64))
def test_key_belongs_to_one_of_the_partitions(key: str, count: int) -> None:
    assert 0 <= compute_partition(key, count) < count


def test_partition_of_a_key_never_changes() -> None:
    """Different versions of Queenright in one cluster must agree on the partition."""
    assert [find_agent_partition(name, count=64) for name in ("researcher", "writer", "")] == [31, 22, 4]


@pytest.mark.parametrize("namespace", ["", "eu"])
def test_heartbeat_that_names_its_service_goes_to_the_partition_of_its_telemetry(namespace: str) -> None:
    attributes = {"service.name": "shop", **({"service.namespace": namespace} if namespace else {})}
    resource = {
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in attributes.items()]
    }
    body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [{"name": "work"}]}]}]}
    request = ParseDict(body, ExportTraceServiceRequest()).SerializeToString()
    for count in (*PARTITION_COUNTS, HUGE_PARTITION_COUNT):
        assert set(split_request("/v1/traces", request, count)) == {
            find_agent_partition("shop", namespace, count=count)
        }


def test_agent_goes_to_the_partition_of_the_service_with_its_name() -> None:
    body = make_request(**{"service.name": "researcher"})
    assert split_request("/v1/traces", body, 64) == {find_agent_partition("researcher", count=64): body}


def test_agent_named_by_the_resource_goes_to_its_partition() -> None:
    """The processes of a service can be in several partitions if each process names its agent."""
    body = make_request(**{"service.name": "fleet", "gen_ai.agent.name": "researcher"})
    assert split_request("/v1/traces", body, 64) == {find_agent_partition("researcher", count=64): body}


def test_records_that_name_an_agent_go_to_its_partition() -> None:
    """One process can have thousands of workers, each with its own name."""
    resource = {"service.name": "queenright-agents", names.DISTRIBUTION_NAME: names.DISTRIBUTION}
    agents = [f"agent-{number % 7}" for number in range(40)]
    body = make_request(*agents, **resource)
    bodies = split_request("/v1/traces", body, 64)
    assert set(bodies) == {find_agent_partition(agent, count=64) for agent in agents}
    placements: list[tuple[int, str]] = []
    for number, split_body in bodies.items():
        [group] = ExportTraceServiceRequest.FromString(split_body).resource_spans
        assert {
            agent_id.key: agent_id.value.string_value for agent_id in group.resource.attributes
        } == resource
        placements += [(number, span.attributes[0].value.string_value) for span in group.scope_spans[0].spans]
    assert sorted(placements) == sorted((find_agent_partition(agent, count=64), agent) for agent in agents)
    assert split_request("/v1/traces", make_request("agent-1", "agent-1", **resource), 64) == {
        find_agent_partition("agent-1", count=64): make_request("agent-1", "agent-1", **resource)
    }


def make_request(*agents: str, **resource: str) -> bytes:
    """Return a request with one span of each agent."""
    request = ExportTraceServiceRequest()
    group = request.resource_spans.add()
    for key, value in resource.items():
        group.resource.attributes.add(key=key).value.string_value = value
    spans = group.scope_spans.add().spans
    for agent in agents or ("",):
        span = spans.add(name="work")
        if agent:
            span.attributes.add(key=names.GEN_AI_AGENT_NAME).value.string_value = agent
    return request.SerializeToString()


@pytest.mark.parametrize(
    "body",
    [
        b'{"session_id": "one", "tool_response": "\\ud83d"}',
        b'{"session_id": "one", "tool_response": NaN}',
        b'{"tool_response": "", "session_id": " one"}',
    ],
)
def test_hook_call_goes_to_the_partition_of_its_session(body: bytes) -> None:
    """Coding agents truncate text within a character; the receiver accepts such a call."""
    assert find_hook_partition(body, 64) == find_hook_partition(b'{"session_id": "one"}', 64) != 0


@pytest.mark.parametrize("body", [b"", b"\x0a\x00", b"[]", b'{"session_id": 7}', b"\xff"])
def test_hook_call_without_a_session_goes_to_the_first_partition(body: bytes) -> None:
    assert find_hook_partition(body, 8) == 0


def test_split_request_is_not_much_longer_than_the_original() -> None:
    """Each part repeats the resource, so there is one part per partition instead of one per session."""
    request = ExportLogsServiceRequest()
    group = request.resource_logs.add()
    group.resource.attributes.add(key="note").value.string_value = "x" * 32_768
    scope = group.scope_logs.add()
    scope.scope.name = "com.anthropic.claude_code.events"
    for number in range(3_000):
        record = scope.log_records.add()
        record.attributes.add(key="session.id").value.string_value = f"session-{number}"
    body = request.SerializeToString()
    bodies = split_request("/v1/logs", body, 64)
    assert len(bodies) == 64
    assert sum(map(len, bodies.values())) < 64 * 33_000 + len(body)


def test_request_with_too_many_resources_is_refused() -> None:
    """Reading them one by one would take too long."""
    split_request("/v1/traces", b"\x0a\x00" * MAX_GROUPS, 8)
    with pytest.raises(RejectedRequestError, match="resources and scopes"):
        split_request("/v1/traces", b"\x0a\x00" * (MAX_GROUPS + 1), 8)


def test_damaged_request_is_refused() -> None:
    with pytest.raises(RejectedRequestError):
        split_request("/v1/traces", b"\x0a\xff", 8)


@pytest.mark.parametrize("path", ["/v1/traces", "/v1/logs", "/v1/metrics"])
def test_request_without_records_is_not_split(path: str) -> None:
    assert split_request(path, b"", 8) == {0: b""}
