"""Any request body gives control back to the event loop after a bounded amount of work (B127)."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import zlib
from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

import pytest
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # ships stubs without py.typed
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import CollectorRegistry

from queenright.runtime.events import AgentEvent
from queenright.server.otlp import OtlpReceiver, encoding, protobuf_split, receiver
from queenright.server.otlp.encoding import MediaType, check_json, decompress_chunks
from queenright.server.otlp.errors import RejectedRequestError
from queenright.server.otlp.loop_share import CapacityLimiter, EventLoopShare
from queenright.server.otlp.protobuf_split import MAX_ITEM, MAX_PIECE, MAX_SHARED, split_request
from tests.server.otlp.bodies import CORPUS, Body, make_field, make_item

T = TypeVar("T")
STEPS_PER_SLICE = 64


class StepCountingShare(EventLoopShare):
    """A share of the event loop that counts steps instead of seconds, and records the steps of each slice."""

    def __init__(self) -> None:
        counter = itertools.count()
        super().__init__(STEPS_PER_SLICE, lambda: next(counter))
        self.slices: list[int] = []

    async def run(self, work: Callable[[Callable[[], bool]], T]) -> T:
        def count_until_over(is_over: Callable[[], bool]) -> T:
            count = 0

            def count_step() -> bool:
                nonlocal count
                count += 1
                return is_over()

            try:
                return work(count_step)
            finally:
                self.slices.append(count)

        return await super().run(count_until_over)


class SentRequest:
    """A request that is sent directly to the app, and the work that it caused."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.share = StepCountingShare()
        self.parsed_sizes: list[int] = []
        self.batch_sizes: list[int] = []
        self.status = 0
        self.body = b""
        parse = encoding.parse_message

        def record_parse(body: bytes, media_type: MediaType, make: Callable[[], Message]) -> Message:
            self.parsed_sizes.append(len(body))
            return parse(body, media_type, make)

        monkeypatch.setattr(receiver, "parse_message", record_parse)

    async def ingest(self, events: list[AgentEvent]) -> None:
        self.batch_sizes.append(len(events))

    async def post(self, body: Body) -> None:
        app = OtlpReceiver(self.ingest, registry=CollectorRegistry(), share=self.share)
        headers, content = body.build_request()
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            self.status = message.get("status", self.status)
            self.body += message.get("body", b"")

        scope = {"type": "http", "method": "POST", "path": body.path, "headers": raw}
        await app(scope, receive, send)
        assert app._in_flight == 0


@pytest.mark.parametrize("name", CORPUS)
def test_hostile_body_is_answered_in_bounded_slices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = SentRequest(monkeypatch)
    body = CORPUS[name](0.1)

    asyncio.run(request.post(body))

    assert request.status in (200, 400, 413)
    if request.status != 200 and body.content_type.endswith("protobuf"):
        assert Status.FromString(request.body).message
    assert max(request.share.slices, default=0) <= STEPS_PER_SLICE
    assert all(size <= max(MAX_PIECE, MAX_ITEM) + 4 * MAX_SHARED for size in request.parsed_sizes)
    assert all(count <= 1_026 for count in request.batch_sizes)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("empty resources", 413),
        ("empty scopes", 413),
        ("empty attributes", 413),
        ("values in a list", 413),
        ("attributes of a resource", 413),
        ("a damaged end", 413),
        ("empty spans", 413),
        ("lists in JSON", 413),
        ("streams of gzip", 400),
    ],
)
def test_body_of_too_many_messages_is_refused(
    name: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = SentRequest(monkeypatch)

    asyncio.run(request.post(CORPUS[name](0.1)))

    assert request.status == status


async def test_long_step_is_followed_by_turns_without_a_step() -> None:
    """B127: the time that a step takes beyond its slice is deducted from the following turns."""
    steps, turn = 0, 0
    turns_of_steps: list[int] = []
    share = EventLoopShare(STEPS_PER_SLICE, lambda: steps)

    def work(_: Callable[[], bool]) -> None:
        nonlocal steps
        steps += 3 * STEPS_PER_SLICE
        turns_of_steps.append(turn)

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(share.run(work))
        while len(turns_of_steps) < 4:
            await asyncio.sleep(0)
            turn += 1

    assert min(later - earlier for earlier, later in itertools.pairwise(turns_of_steps)) >= 3


values: st.SearchStrategy[bytes] = st.deferred(
    lambda: (
        st.binary(max_size=12)
        | st.builds(
            lambda number, value, count: (
                make_field(number, value) * (count if count * len(value) < 1_000_000 else 1)
            ),
            st.integers(1, 16),
            values,
            st.sampled_from([1, 1, 2, 3, 40, 3_000]),
        )
        | st.builds(bytes.__add__, values, values)
    )
)


@given(
    content=values,
    path=st.sampled_from(["/v1/traces", "/v1/logs", "/v1/metrics"]),
    wrap=st.sampled_from(
        [
            bytes,
            lambda value: make_field(1, value),
            lambda value: make_field(1, make_field(2, value)),
            make_item,
        ]
    ),
    is_compressed=st.booleans(),
)
def test_any_body_is_answered_in_bounded_slices(
    content: bytes, path: str, wrap: Callable[[bytes], bytes], is_compressed: bool
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        request = SentRequest(monkeypatch)
        asyncio.run(request.post(Body(path, "application/x-protobuf", lambda: wrap(content), is_compressed)))

    assert request.status in (200, 400, 413)
    assert max(request.share.slices, default=0) <= STEPS_PER_SLICE
    assert all(size <= max(MAX_PIECE, MAX_ITEM) + 4 * MAX_SHARED for size in request.parsed_sizes)


@given(
    st.lists(st.lists(st.lists(st.integers(0, 60), max_size=6), max_size=4), max_size=4), st.integers(30, 400)
)
def test_pieces_contain_every_span_once_and_its_resource(sizes: list[list[list[int]]], limit: int) -> None:
    request = ExportTraceServiceRequest()
    for number, scopes in enumerate(sizes):
        resource = request.resource_spans.add(schema_url=f"r{number}")
        for index, spans in enumerate(scopes):
            scope = resource.scope_spans.add(schema_url=f"s{index}")
            scope.scope.name = "scope"
            for size in spans:
                scope.spans.add(name="x" * size)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(protobuf_split, "MAX_PIECE", limit)
        pieces = [
            ExportTraceServiceRequest.FromString(piece)
            for piece in split_request(request.SerializeToString(), ExportTraceServiceRequest)
        ]

    assert _list_spans(*pieces) == _list_spans(request)
    assert all(piece.ByteSize() <= limit + 120 for piece in pieces)


def _list_spans(*requests: ExportTraceServiceRequest) -> list[tuple[str, str, str]]:
    return [
        (resource.schema_url, scope.schema_url, span.name)
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


@pytest.mark.parametrize("body", [b"\x0a\x05\x00", b"\x0b", b"\x00\x00", b"\x0a" + b"\xff" * 11, b"\x09\x00"])
def test_damaged_body_is_not_cut_into_pieces(body: bytes) -> None:
    with pytest.raises(RejectedRequestError) as error:
        split_request(body, ExportTraceServiceRequest)

    assert error.value.status == 400


@given(
    st.lists(st.binary(max_size=40_000) | st.just(b"\x00" * 700_000), min_size=1, max_size=5), st.booleans()
)
def test_stepwise_decompression_gives_the_whole_body(members: list[bytes], is_deflate: bool) -> None:
    if is_deflate:
        members = members[:1]
    pack: Callable[[bytes], bytes] = zlib.compress if is_deflate else gzip.compress
    steps = decompress_chunks(b"".join(map(pack, members)), "deflate" if is_deflate else "gzip", 1 << 22)

    chunks = list(steps)

    assert b"".join(chunks) == b"".join(members)
    assert all(0 < len(chunk) <= 256 * 1024 for chunk in chunks)


def test_punctuation_in_json_strings_is_not_counted_as_values() -> None:
    check_json(b'{"x":"' + b"[,:{" * 500_000 + b'"}')
    with pytest.raises(RejectedRequestError):
        check_json(b"[" + b"[]," * 100_000 + b"[]]")


async def test_waiting_work_gets_its_turn_and_cancelled_work_blocks_nothing() -> None:
    share, finished_numbers = StepCountingShare(), list[int]()

    async def work(number: int) -> None:
        for _ in range(3):
            await share.run(lambda is_over: [is_over() for _ in range(STEPS_PER_SLICE)])
            finished_numbers.append(number)

    tasks = [asyncio.create_task(work(number)) for number in range(3)]
    tasks.append(asyncio.create_task(share.run(lambda _: None)))
    await asyncio.sleep(0)
    tasks.pop().cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(*tasks)

    assert sorted(finished_numbers) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


async def test_capacity_limits_concurrent_size() -> None:
    limiter, current, peak = CapacityLimiter(10), 0, 0

    async def occupy(size: int) -> None:
        nonlocal current, peak
        async with limiter.acquire(size):
            current += size
            peak = max(peak, current)
            await asyncio.sleep(0)
            current -= size

    tasks = [asyncio.create_task(occupy(size)) for size in (4, 4, 4, 30, 1, 9, 2)]
    await asyncio.sleep(0)
    tasks[3].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    assert (peak <= 10, current) == (True, 0)
    async with asyncio.timeout(60):
        await occupy(50)
