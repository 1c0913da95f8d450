import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from pydantic import SecretStr

from queenright.health.store.store import Store
from queenright.judge.quoting import unquote
from queenright.judge.stack.event_traces import EventTraces
from queenright.judge.stack.http import StackAddress
from queenright.judge.stack.prometheus import Prometheus, Series
from queenright.judge.stack.tempo import Tempo
from queenright.judge.stack.tools import (
    GET_TRACE,
    MAX_CHARACTERS,
    QUERY_METRICS,
    metrics_text,
    stack_tools,
    trace_text,
)
from queenright.judge.stack.traces import TraceSpan
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.tooling.tools import Tool, ToolResult
from tests.judge.conftest import FakeTime
from tests.judge.stack_parts import make_loop_trace, make_matrix, make_vector, serve_answers

TRACE = "0af7651916cd43dd8448eb211c80319c"
UP = make_vector(({"__name__": "up", "job": "queenright"}, 1.0))


async def ask(tool: Tool, **arguments: Any) -> ToolResult:
    return await tool.call(json.dumps(arguments), {"node_id": "judge"})


class ToolFactory:
    """Creates clients of the APIs, and closes them at the end."""

    def __init__(self) -> None:
        self._clients: list[Prometheus | Tempo] = []

    def prometheus(self, address: StackAddress | str, *, timeout: float = 10.0) -> Prometheus:
        client = Prometheus(_parse_address(address), timeout=timeout)
        self._clients.append(client)
        return client

    def __call__(self, url: str, *, timeout: float = 10.0) -> dict[str, Tool]:
        tempo = Tempo(_parse_address(url), timeout=timeout)
        self._clients.append(tempo)
        prometheus = self.prometheus(url, timeout=timeout)
        tools = stack_tools(prometheus=prometheus, traces=tempo, clock=FakeTime())
        return {tool.name: tool for tool in tools}

    async def aclose(self) -> None:
        for client in self._clients:
            await client.aclose()


def _parse_address(address: StackAddress | str) -> StackAddress:
    return StackAddress.parse(address) if isinstance(address, str) else address


@pytest.fixture
async def clients() -> AsyncIterator[ToolFactory]:
    clients = ToolFactory()
    yield clients
    await clients.aclose()


async def test_instant_query_is_answered_with_quoted_data(clients: ToolFactory) -> None:
    async with serve_answers(lambda path, params: (200, UP)) as (server, url):
        result = await ask(clients(url)[QUERY_METRICS], promql="up")

    assert not result.failed
    assert unquote("metrics", result.content) == {
        "series_in_all": 1,
        "series": [
            {
                "labels": {"__name__": "up", "job": "queenright"},
                "points": [["2027-01-15T08:00:00Z", 1.0]],
            }
        ],
    }
    assert server.requests == [("/api/v1/query", {"query": "up", "timeout": "10s", "time": "1800000000.000"})]


async def test_range_query_has_at_most_sixty_points(clients: ToolFactory) -> None:
    async with serve_answers(lambda path, params: (200, make_matrix())) as (server, url):
        tool = clients(url)[QUERY_METRICS]
        await ask(tool, promql="up", range_minutes=1440, step_seconds=1)
        await ask(tool, promql="up", range_minutes=10, step_seconds=300)

    (path, day), (_, minutes) = server.requests
    assert path == "/api/v1/query_range"
    assert float(day["end"]) - float(day["start"]) == 86_400
    assert 86_400 / float(day["step"]) + 1 <= 60
    assert minutes["step"] == "300"


async def test_queries_reach_back_at_most_a_day(clients: ToolFactory) -> None:
    async with serve_answers(lambda path, params: (200, UP)) as (server, url):
        tool = clients(url)[QUERY_METRICS]
        too_far = await ask(tool, promql="up", range_minutes=1441)
        range_too_long = await ask(tool, promql="rate(x[30d])")
        sum_too_long = await ask(tool, promql="rate(x[1h])", range_minutes=1440)

    assert too_far.failed
    assert "range_minutes" in too_far.content
    assert "720 h" in range_too_long.content
    assert "24 h" in range_too_long.content
    assert "25 h" in sum_too_long.content
    assert server.requests == []


async def test_prometheus_error_is_returned_to_the_model(clients: ToolFactory) -> None:
    error = {"status": "error", "errorType": "bad_data", "error": "1:4: parse error: unexpected <op:->"}
    async with serve_answers(lambda path, params: (400, error)) as (_, url):
        result = await ask(clients(url)[QUERY_METRICS], promql="up -")

    assert result.failed
    assert "400 1:4: parse error" in result.content


@pytest.mark.parametrize("answer", [b"<html>", b"[1]", b'{"status": "success"}', b'{"status": "success", '])
async def test_invalid_answer_is_reported_as_an_error(clients: ToolFactory, answer: bytes) -> None:
    async with serve_answers(lambda path, params: (200, answer)) as (_, url):
        for tool, arguments in ((QUERY_METRICS, {"promql": "up"}), (GET_TRACE, {"trace_id": TRACE})):
            result = await ask(clients(url)[tool], **arguments)
            assert result.failed
            assert "error" in result.content


async def test_unresponsive_prometheus_times_out(clients: ToolFactory) -> None:
    async with serve_answers(lambda path, params: (200, UP)) as (server, url):
        server.should_hang = True
        result = await ask(clients(url, timeout=0.05)[QUERY_METRICS], promql="up")

    assert result.failed
    assert "0.05 s" in result.content


async def test_large_answer_is_read_up_to_a_limit(clients: ToolFactory) -> None:
    async with serve_answers(lambda path, params: (200, b" " * (17 << 20))) as (_, url):
        result = await ask(clients(url)[QUERY_METRICS], promql="up")

    assert result.failed
    assert "16 MB" in result.content


async def test_credentials_are_sent_but_never_shown(clients: ToolFactory) -> None:
    secret = "hunter2hunter2"
    async with serve_answers(lambda path, params: (500, {"error": "broken"})) as (server, url):
        with_password = StackAddress.parse(url.replace("http://", f"http://ada:{secret}@"))
        token = StackAddress.parse(url, SecretStr(secret))
        texts = []
        for address in (with_password, token):
            [tool] = stack_tools(prometheus=clients.prometheus(address), clock=FakeTime())
            texts.append((await ask(tool, promql="up")).content)
            texts.append(repr(address))

    assert server.authorization[0].startswith("Basic ")
    assert server.authorization[1] == f"Bearer {secret}"
    assert not any(secret in text for text in texts)
    assert not any("127.0.0.1" in text for text in texts[::2]), "the model must not learn the address"


async def test_error_about_an_invalid_url_does_not_contain_it() -> None:
    for url in ("ftp://ada:hunter2@host", "http://", "http://ada:hunter2@host:port", "http://h?q=hunter2"):
        with pytest.raises(ValueError, match="http") as error:
            StackAddress.parse(url)
        assert "hunter2" not in str(error.value)


async def test_secrets_in_labels_and_spans_are_masked(clients: ToolFactory) -> None:
    secret = "sk-abcdefghijklmnopqrstuvwx"
    async with serve_answers(lambda path, params: (200, make_vector(({"job": f"key {secret}"}, 1.0)))) as (
        _,
        url,
    ):
        result = await ask(clients(url)[QUERY_METRICS], promql="up")
    span = TraceSpan(
        f"say {secret}", 1.0, 2.0, error=f"refused {secret}", attributes={"gen_ai.tool.name": secret}
    )

    assert secret not in result.content
    assert secret not in trace_text(TRACE, [span])


async def test_one_visit_can_make_five_queries(clients: ToolFactory) -> None:
    tracer = TracerProvider().get_tracer("test")
    async with serve_answers(lambda path, params: (200, UP)) as (server, url):
        tool = clients(url)[QUERY_METRICS]
        with tracer.start_as_current_span("judge_check one"):
            first_results = [await ask(tool, promql="up") for _ in range(6)]
        with tracer.start_as_current_span("judge_check two"):
            second_result = await ask(tool, promql="up")

    assert [result.failed for result in first_results] == [False] * 5 + [True]
    assert "all 5 queries" in first_results[-1].content
    assert not second_result.failed
    assert len(server.requests) == 6


async def test_five_queries_are_available_again_after_ten_minutes_without_traces(
    clients: ToolFactory,
) -> None:
    time = FakeTime()
    async with serve_answers(lambda path, params: (200, UP)) as (_, url):
        [tool] = stack_tools(prometheus=clients.prometheus(url), clock=time)
        failed_values = [(await ask(tool, promql="up")).failed for _ in range(6)]
        time.now += 600
        failed_values.append((await ask(tool, promql="up")).failed)

    assert failed_values == [False] * 5 + [True, False]


async def test_trace_shows_its_newest_spans_in_order(clients: ToolFactory) -> None:
    async with serve_answers(
        lambda path, params: (200, make_loop_trace("researcher", begin=1_799_999_000.0, calls=40))
    ) as (server, url):
        result = await ask(clients(url)[GET_TRACE], trace_id=TRACE.upper())

    assert server.requests == [(f"/api/traces/{TRACE}", {})]
    quoted_data = unquote("trace", result.content)
    assert quoted_data is not None
    assert quoted_data["spans_in_all"] == 80
    assert quoted_data["left_out"] == 80 - len(quoted_data["spans"])
    assert quoted_data["spans"][-1]["name"] == "step search_node"
    assert [span["at"] for span in quoted_data["spans"]] == sorted(
        span["at"] for span in quoted_data["spans"]
    )
    assert quoted_data["spans"][-2]["tool.name"] == "search"
    assert len(result.content) <= MAX_CHARACTERS


async def test_missing_trace_does_not_end_the_visit(clients: ToolFactory) -> None:
    async with serve_answers(lambda path, params: (404, b"trace not found")) as (_, url):
        result = await ask(clients(url)[GET_TRACE], trace_id=TRACE)
        no_id = await ask(clients(url)[GET_TRACE], trace_id="../../api/v1/admin")

    assert TRACE in result.content
    assert no_id.failed
    assert "trace_id" in no_id.content


async def test_trace_comes_from_the_event_log_without_tempo(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 'q.db'}")
    await store.append(
        [
            AgentEvent(
                type=EventType.TOOL_CALL_COMPLETED,
                time=1_800_000_000.0 + number,
                agent_id="researcher",
                session_id="s",
                node_id="search_node",
                trace_id=TRACE if number != 1 else "f" * 32,
                data={"tool": "search", "outcome": "error", "error": f"no answer {number}"},
            )
            for number in range(3)
        ]
    )
    [tool] = stack_tools(traces=EventTraces(store), clock=FakeTime())

    result = await ask(tool, trace_id=TRACE)
    await store.close()
    after_close = await ask(tool, trace_id=TRACE)

    trace = unquote("trace", result.content)
    assert trace is not None
    assert [span["error"] for span in trace["spans"]] == ["no answer 0", "no answer 2"]
    assert trace["spans"][0]["tool.name"] == "search"
    assert after_close.failed


def test_tools_exist_only_for_configured_backends() -> None:
    prometheus = Prometheus(StackAddress.parse("http://127.0.0.1:9090"))

    assert stack_tools(clock=FakeTime()) == []
    assert [tool.name for tool in stack_tools(prometheus=prometheus, clock=FakeTime())] == [QUERY_METRICS]


texts = st.text(max_size=300)
series = st.builds(
    Series,
    labels=st.dictionaries(st.text(max_size=400), texts, max_size=40),
    points=st.lists(
        st.tuples(st.floats(0, 2e9), st.floats(allow_nan=True, allow_infinity=True)), min_size=1, max_size=80
    ).map(tuple),
)


@given(st.lists(series, max_size=30))
def test_answer_is_bounded_and_stays_inside_its_quotes(data: list[Series]) -> None:
    text = metrics_text(data)

    assert len(text) <= MAX_CHARACTERS
    assert text.count("<") == 2
    quoted_data = unquote("metrics", text)
    assert quoted_data is not None
    assert quoted_data["series_in_all"] == len(data)


@given(st.lists(st.builds(TraceSpan, name=texts, start=st.floats(0, 2e9), end=st.none(), error=texts)))
def test_trace_is_bounded(spans: list[TraceSpan]) -> None:
    text = trace_text(TRACE, spans)

    assert len(text) <= MAX_CHARACTERS
    assert unquote("trace", text) is not None
