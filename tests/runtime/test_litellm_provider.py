import asyncio
import importlib
import json
import subprocess
import sys
import textwrap
import traceback
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.runtime.deadline import within
from queenright.runtime.llm.litellm_errors import retry_after
from queenright.runtime.llm.litellm_provider import (
    LiteLlmProvider,
    ProviderUnavailableError,
    load_provider,
    needs_cache_markers,
)
from queenright.runtime.llm.litellm_reply import ReplyAccumulator
from queenright.runtime.llm.model import (
    LLMProvider,
    Message,
    ModelError,
    ModelReply,
    ToolCall,
    ToolSpec,
    TransientModelError,
)
from queenright.runtime.llm.scripted_provider import ScriptedProvider
from tests.isolation import environment
from tests.runtime.conftest import FakeTime
from tests.runtime.openai_server import (
    Answer,
    OpenAIServer,
    Refusal,
    Reply,
    Stream,
    Whole,
    event,
    openai_server,
)

# litellm uses deprecated features of pydantic and the standard library.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:pydantic")

NOW = 1_800_000_000.0
MODEL = "openai/gpt-4o-mini"
KEY = "bees-keep-this-one"
"""A key whose format is not recognized as a secret."""
CONVERSATION = [Message(role="system", content="Be a bee."), Message(role="user", content="How is it?")]
TOOLS = [ToolSpec("look", "Look.", {"type": "object", "properties": {"place": {"type": "string"}}})]
HELLO = Answer(text=["Hel", "lo", " bees"])
CALLS = Answer(
    text=["Let me see."],
    tool_calls=[("c1", "look", '{"place": "hive"}'), ("c2", "look", '{"place": "the far meadow"}')],
)


@pytest.fixture(scope="module", autouse=True)
def litellm() -> Any:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        warnings.simplefilter("ignore")
        return importlib.import_module("litellm")


@pytest.fixture
def serve_openai(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Yield a function that starts a server which litellm treats as OpenAI's."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    @asynccontextmanager
    async def serve(*replies: Reply) -> AsyncIterator[OpenAIServer]:
        async with openai_server(*replies) as server:
            monkeypatch.setenv("OPENAI_API_BASE", server.url)
            yield server

    return serve


def make_provider(**options: Any) -> LiteLlmProvider:
    return LiteLlmProvider(MODEL, **{"timeout_seconds": 30, "clock": lambda: NOW, **options})


async def get_error(serve_openai: Any, *replies: Reply) -> ModelError:
    async with serve_openai(*replies) as server:
        with pytest.raises(ModelError) as error_info:
            await make_provider().complete(CONVERSATION, TOOLS)
        assert len(server.requests) == len(replies)
    return error_info.value


async def test_streamed_text_is_complete_in_the_reply(serve_openai: Any) -> None:
    pieces: list[str] = []
    async with serve_openai(HELLO) as server:
        reply = await make_provider().complete(CONVERSATION, TOOLS, pieces.append)

    assert pieces == ["Hel", "lo", " bees"]
    assert (reply.text, reply.tool_calls, reply.finish_reason) == ("Hello bees", (), "stop")
    [request] = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body["stream_options"] == {"include_usage": True}
    assert [m["role"] for m in request.body["messages"]] == ["system", "user"]
    assert request.body["tools"][0]["function"]["name"] == "look"


async def test_usage_and_cost_come_from_the_provider(serve_openai: Any) -> None:
    async with serve_openai(replace(HELLO, usage=(1_000_000, 500_000))):
        reply = await make_provider().complete(CONVERSATION, TOOLS)

    assert (reply.input_tokens, reply.output_tokens) == (1_000_000, 500_000)
    assert reply.cost == pytest.approx(0.15 + 0.30)


async def test_model_without_a_price_costs_nothing(serve_openai: Any) -> None:
    async with serve_openai(replace(HELLO, model="beespoke-1")):
        reply = await LiteLlmProvider("openai/beespoke-1").complete(CONVERSATION, [])

    assert (reply.text, reply.input_tokens, reply.cost) == ("Hello bees", 12, 0.0)


async def test_parallel_tool_calls_are_put_together_from_interleaved_pieces(serve_openai: Any) -> None:
    async with serve_openai(CALLS):
        reply = await make_provider().complete(CONVERSATION, TOOLS)

    assert reply.tool_calls == (
        ToolCall("c1", "look", '{"place": "hive"}'),
        ToolCall("c2", "look", '{"place": "the far meadow"}'),
    )
    assert (reply.text, reply.finish_reason) == ("Let me see.", "tool_calls")


async def test_malformed_arguments_are_returned_verbatim(serve_openai: Any) -> None:
    async with serve_openai(Answer(tool_calls=[("c1", "look", '{"place": ')])):
        reply = await make_provider().complete(CONVERSATION, TOOLS)

    assert reply.tool_calls == (ToolCall("c1", "look", '{"place": '),)


@pytest.mark.parametrize("arguments", ['{"place": ', "[1]", "hive", '"\ud800"'])
async def test_malformed_arguments_are_wrapped_in_an_object(serve_openai: Any, arguments: str) -> None:
    messages = [
        *CONVERSATION,
        Message(role="assistant", content="", tool_calls=(ToolCall("c1", "look", arguments),)),
        Message(role="tool", content="error: no JSON", tool_call_id="c1"),
    ]
    async with serve_openai(HELLO) as server:
        await make_provider().complete(messages, TOOLS)

    [request] = server.requests
    _, _, call, answer = request.body["messages"]
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"malformed": arguments}
    assert call.get("content") is None
    assert answer["tool_call_id"] == "c1"


async def test_lone_surrogates_are_replaced(serve_openai: Any) -> None:
    async with serve_openai(HELLO) as server:
        await make_provider().complete([Message(role="user", content="file \ud800.txt, ü")], [])

    assert server.requests[0].body["messages"][0]["content"] == "file ?.txt, ü"
    assert "tools" not in server.requests[0].body


async def test_empty_answer_is_an_answer(serve_openai: Any) -> None:
    async with serve_openai(Answer()):
        reply = await make_provider().complete(CONVERSATION, TOOLS)

    assert (reply.text, reply.tool_calls, reply.finish_reason) == ("", (), "stop")


async def test_filtered_answer_is_an_error(serve_openai: Any) -> None:
    error = await get_error(serve_openai, Answer(finish_reason="content_filter"))

    assert not isinstance(error, TransientModelError)
    assert "content filter" in str(error)


async def test_non_streaming_server_is_called_without_streaming_afterwards(serve_openai: Any) -> None:
    pieces: list[str] = []
    async with serve_openai(Whole(answer=CALLS), CALLS, HELLO) as server:
        model = make_provider()
        first_reply = await model.complete(CONVERSATION, TOOLS, pieces.append)
        second_reply = await model.complete(CONVERSATION, TOOLS, pieces.append)

    assert [call.id for call in first_reply.tool_calls] == ["c1", "c2"]
    assert second_reply.text == "Hello bees"
    assert pieces == ["Let me see.", "Hello bees"]
    assert (second_reply.input_tokens, second_reply.output_tokens) == (12, 3)
    assert second_reply.cost > 0
    assert [bool(request.body.get("stream")) for request in server.requests] == [True, False, False]


async def test_model_without_streaming_is_called_without_it(serve_openai: Any) -> None:
    refusal = Refusal(
        status=400, message="Unsupported value: 'stream' does not support true with this model."
    )
    async with serve_openai(refusal, HELLO) as server:
        reply = await make_provider().complete(CONVERSATION, TOOLS)

    assert reply.text == "Hello bees"
    assert len(server.requests) == 2


async def test_provider_without_a_streaming_interface_still_works(
    litellm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NonStreaming(litellm.CustomLLM):  # type: ignore[misc]  # litellm is untyped here
        async def acompletion(self, *_: Any, **arguments: Any) -> Any:
            response = arguments["model_response"]
            response.choices[0].message = litellm.Message(content="hum")
            response.usage = litellm.Usage(prompt_tokens=2, completion_tokens=1, total_tokens=3)
            return response

    monkeypatch.setattr(
        litellm, "custom_provider_map", [{"provider": "hum", "custom_handler": NonStreaming()}]
    )
    litellm.utils.custom_llm_setup()

    reply = await LiteLlmProvider("hum/one").complete(CONVERSATION, TOOLS)

    assert (reply.text, reply.input_tokens, reply.output_tokens) == ("hum", 2, 1)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
async def test_transient_errors_are_classified_without_retry(serve_openai: Any, status: int) -> None:
    error = await get_error(serve_openai, Refusal(status=status, message="the hive is full"))

    assert isinstance(error, TransientModelError)
    assert str(error).startswith(f"{MODEL}: ")
    assert str(error).endswith(": the hive is full")


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (400, None, "no such parameter"),
        (400, "content_filter", "The response was filtered due to the content management policy."),
        (400, "context_length_exceeded", "This model's maximum context length is 4097 tokens."),
        (401, "invalid_api_key", "Incorrect API key provided."),
        (403, None, "not from here"),
        (404, "model_not_found", "The model does not exist."),
    ],
)
async def test_permanent_errors_are_not_transient(
    serve_openai: Any, status: int, code: str | None, message: str
) -> None:
    error = await get_error(serve_openai, Refusal(status=status, code=code, message=message))

    assert not isinstance(error, TransientModelError)
    assert message in str(error)


async def test_request_that_cannot_be_processed_is_not_transient(serve_openai: Any) -> None:
    refusal = Refusal(status=422, message="cannot be processed")
    # For this status, litellm itself retries once without the rejected parameters.
    error = await get_error(serve_openai, refusal, refusal)

    assert not isinstance(error, TransientModelError)


@pytest.mark.parametrize(
    ("expected", "seconds"),
    [("7", 7.0), (format_datetime(datetime.fromtimestamp(NOW + 90, UTC), usegmt=True), 90.0)],
)
async def test_retry_after_is_read_in_seconds_and_as_a_date(
    serve_openai: Any, expected: str, seconds: float
) -> None:
    error = await get_error(
        serve_openai, Refusal(status=429, message="slow", headers={"Retry-After": expected})
    )

    assert isinstance(error, TransientModelError)
    assert error.retry_after == seconds


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "9", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Fri, 15 Jan 2027 08:00:05 -0000"}, 5.0),
    ],
)
def test_unusable_retry_after_is_ignored(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, now=NOW) == seconds


@given(st.text())
def test_any_retry_after_value_is_parsed_safely(value: str) -> None:
    seconds = retry_after({"retry-after": value, "retry-after-ms": value}, now=NOW)

    assert seconds is None or 0 <= seconds < float("inf")


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(Stream(events=HELLO.build_events()[:3], is_torn=True), id="torn"),
        pytest.param(Stream(events=HELLO.build_events()[:3]), id="ended"),
        pytest.param(Stream(events=CALLS.build_events()[:5]), id="in a tool call"),
        pytest.param(Stream(), id="before it began"),
        pytest.param(Stream(is_torn=True, head=False), id="torn before it began"),
        pytest.param(Stream(events=[*HELLO.build_events()[:3], b"data: {no json\n\n"]), id="garbage"),
        pytest.param(
            Stream(
                events=[*HELLO.build_events()[:3], event({"error": {"message": "overloaded", "code": 503}})]
            ),
            id="error",
        ),
    ],
)
async def test_interrupted_stream_is_transient(serve_openai: Any, stream: Stream) -> None:
    async with serve_openai(stream, HELLO) as server:
        model = make_provider()
        with pytest.raises(TransientModelError):
            await model.complete(CONVERSATION, TOOLS)
        reply = await model.complete(CONVERSATION, TOOLS)

    assert reply.text == "Hello bees"
    assert [bool(request.body.get("stream")) for request in server.requests] == [True, True]


async def test_unreachable_server_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    async with openai_server() as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.url)

    with pytest.raises(TransientModelError, match="onnection"):
        await make_provider().complete(CONVERSATION, TOOLS)


@pytest.mark.parametrize("head", [True, False])
async def test_caller_timeout_closes_the_connection(
    serve_openai: Any, fake_time: FakeTime, head: bool
) -> None:
    async with serve_openai(Stream(events=HELLO.build_events()[:2], is_held=True, head=head)) as server:
        task = asyncio.ensure_future(
            within(60, make_provider().complete(CONVERSATION, TOOLS), fake_time.sleep)
        )
        await wait_for_event(server.reply_held)
        await fake_time.advance(60)
        with pytest.raises(TimeoutError):
            await task
        await wait_for_event(server.client_disconnected)


@pytest.mark.parametrize("head", [True, False])
async def test_cancelled_request_closes_the_connection(serve_openai: Any, head: bool) -> None:
    async with serve_openai(Stream(events=HELLO.build_events()[:2], is_held=True, head=head)) as server:
        task = asyncio.ensure_future(make_provider().complete(CONVERSATION, TOOLS))
        await wait_for_event(server.reply_held)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await wait_for_event(server.client_disconnected)


async def test_held_reply_continues_after_release(serve_openai: Any) -> None:
    events = HELLO.build_events()
    async with serve_openai(Stream(events=events[:2], is_held=True, then=events[2:])) as server:
        task = asyncio.ensure_future(make_provider().complete(CONVERSATION, TOOLS))
        await wait_for_event(server.reply_held)
        server.reply_released.set()

        assert (await task).text == "Hello bees"


async def test_provider_timeout_is_transient(serve_openai: Any) -> None:
    async with serve_openai(Stream(events=HELLO.build_events()[:2], is_held=True)):
        with pytest.raises(TransientModelError, match=r"(?i)time"):
            await make_provider(timeout_seconds=0.05).complete(CONVERSATION, TOOLS)


async def test_error_of_on_text_is_not_a_provider_error(serve_openai: Any) -> None:
    def fail(_: str) -> None:
        raise ZeroDivisionError

    async with serve_openai(HELLO):
        with pytest.raises(ZeroDivisionError):
            await make_provider().complete(CONVERSATION, TOOLS, fail)


@pytest.mark.parametrize("key", [KEY, "sk-" + "a1B2" * 10])
async def test_key_repeated_by_provider_is_masked(serve_openai: Any, key: str) -> None:
    refusal = Refusal(status=401, message=f"Incorrect API key provided: {key}", code="invalid_api_key")
    error = await get_error(serve_openai, refusal)

    assert "Incorrect API key provided" in str(error)
    assert key not in "".join(traceback.format_exception(error))
    assert KEY not in repr(make_provider())


async def test_missing_key_is_named_in_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    with pytest.raises(ModelError, match="OPENAI_API_KEY") as error_info:
        await make_provider().complete(CONVERSATION, TOOLS)

    assert not isinstance(error_info.value, TransientModelError)


async def test_provider_that_litellm_does_not_know_is_refused() -> None:
    with pytest.raises(ModelError, match=r"^honeycomb/x: .*Provider") as error_info:
        await LiteLlmProvider("honeycomb/x").complete(CONVERSATION, [])

    assert not isinstance(error_info.value, TransientModelError)


def anthropic_event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


CLAUDE_EVENTS = (
    anthropic_event(
        "message_start",
        message={
            "id": "m1",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": "claude-sonnet-4-5",
            "usage": {"input_tokens": 25, "output_tokens": 1},
        },
    ),
    anthropic_event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    anthropic_event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Let me see."}),
    anthropic_event("content_block_stop", index=0),
    anthropic_event(
        "content_block_start",
        index=1,
        content_block={"type": "tool_use", "id": "t1", "name": "look", "input": {}},
    ),
    anthropic_event(
        "content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": '{"place": '}
    ),
    anthropic_event(
        "content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": '"hive"}'}
    ),
    anthropic_event("content_block_stop", index=1),
    anthropic_event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 15}),
    anthropic_event("message_stop"),
)


async def test_provider_with_its_own_protocol_is_read_equally(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    refusal = Refusal(status=429, message="slow", headers={"retry-after": "11"})
    async with openai_server(
        Stream(events=CLAUDE_EVENTS), Stream(events=CLAUDE_EVENTS[:4]), refusal
    ) as server:
        monkeypatch.setenv("ANTHROPIC_API_BASE", server.url.removesuffix("/v1"))
        model = LiteLlmProvider("anthropic/claude-sonnet-4-5")
        pieces: list[str] = []
        reply = await model.complete(CONVERSATION, TOOLS, pieces.append)
        with pytest.raises(TransientModelError, match="interrupted"):
            await model.complete(CONVERSATION, TOOLS)
        with pytest.raises(TransientModelError) as error_info:
            await model.complete(CONVERSATION, TOOLS)

    assert (reply.text, pieces) == ("Let me see.", ["Let me see."])
    assert reply.tool_calls == (ToolCall("t1", "look", '{"place": "hive"}'),)
    assert (reply.input_tokens, reply.output_tokens) == (25, 15)
    assert reply.cost > 0
    assert error_info.value.retry_after == 11


async def test_concurrent_requests_do_not_mix(serve_openai: Any) -> None:
    answers = [Answer(text=[f"{n} ", "is it"]) for n in range(20)]
    async with serve_openai(*answers):
        replies = await asyncio.gather(*(make_provider().complete(CONVERSATION, TOOLS) for _ in answers))

    assert sorted(reply.text for reply in replies) == sorted("".join(answer.text) for answer in answers)


def call_piece(index: int, call_id: str | None, name: str | None, arguments: str | None) -> SimpleNamespace:
    function = SimpleNamespace(name=name, arguments=arguments)
    return SimpleNamespace(index=index, id=call_id, function=function)


def make_chunk(*pieces: SimpleNamespace, content: str | None = None) -> SimpleNamespace:
    delta = SimpleNamespace(content=content, tool_calls=list(pieces) or None)
    return SimpleNamespace(choices=[SimpleNamespace(index=0, delta=delta, finish_reason=None)])


def gather_reply(*chunks: SimpleNamespace) -> ModelReply:
    ids = iter(f"made{n}" for n in range(9))
    accumulator = ReplyAccumulator(lambda: next(ids))
    for chunk in chunks:
        accumulator.add(chunk)
    return accumulator.reply(0.0)


def test_calls_with_equal_indexes_are_distinguished_by_id() -> None:
    reply = gather_reply(
        make_chunk(call_piece(0, "a", "look", '{"x":')),
        make_chunk(call_piece(0, "a", "look", "1}")),
        make_chunk(call_piece(0, "b", "look", "{}")),
    )

    assert reply.tool_calls == (ToolCall("a", "look", '{"x":1}'), ToolCall("b", "look", "{}"))


def test_calls_without_an_id_are_given_one_each() -> None:
    reply = gather_reply(make_chunk(call_piece(0, None, "look", None), call_piece(1, "", "listen", None)))

    assert reply.tool_calls == (ToolCall("made0", "look", "{}"), ToolCall("made1", "listen", "{}"))


@given(
    calls=st.lists(st.text(min_size=1), max_size=4),
    text=st.text(max_size=20),
    data=st.data(),
)
def test_reply_is_assembled_from_any_chunks(calls: list[str], text: str, data: st.DataObject) -> None:
    queues = [
        [
            call_piece(i, f"c{i}", f"tool{i}", None),
            *(call_piece(i, None, None, letter) for letter in arguments),
        ]
        for i, arguments in enumerate(calls)
    ]
    chunks = [make_chunk(content=letter) for letter in text]
    while any(queues):
        queue = data.draw(st.sampled_from([queue for queue in queues if queue]))
        chunks.append(make_chunk(queue.pop(0)))

    reply = gather_reply(*chunks)

    assert reply.text == text
    assert {call.id: call.arguments for call in reply.tool_calls} == {
        f"c{i}": arguments for i, arguments in enumerate(calls)
    }


def test_node_uses_its_named_model() -> None:
    model: LLMProvider = load_provider("anthropic/claude-sonnet-4-5", timeout_seconds=5)

    assert isinstance(model, LiteLlmProvider)
    assert model.name == "anthropic/claude-sonnet-4-5"


async def test_script_can_be_the_agents_model(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text('{"replies": [{"text": "hum"}]}')

    model = load_provider(f"scripted:{path}", timeout_seconds=5)

    assert isinstance(model, ScriptedProvider)
    assert (await model.complete(CONVERSATION, TOOLS)).text == "hum"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "no model is set"),
        ("scripted:/nowhere/x.json", r"/nowhere/x\.json: cannot"),
        ("queenright/rules", r"is for judge and queen only: .* litellm model, .* or scripted:PATH"),
    ],
)
def test_missing_model_is_rejected_with_a_hint(name: str, reason: str) -> None:
    with pytest.raises(ProviderUnavailableError, match=reason):
        load_provider(name, timeout_seconds=5)


def test_without_litellm_a_model_is_refused_by_the_name_of_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ProviderUnavailableError, match=r"'gpt-5' needs litellm: install queenright\[llm\]"):
        load_provider("gpt-5", timeout_seconds=5)


NETWORK_SCRIPT = """
    import asyncio, os, sys

    import queenright.runtime.llm.litellm_provider as provider_module

    assert "litellm" not in sys.modules, "litellm was imported before the first request"
    hosts = []

    def watch(name, arguments):
        if name == "socket.connect" and isinstance(arguments[1], tuple):
            hosts.append(arguments[1][0])
        if name == "socket.getaddrinfo":
            hosts.append(arguments[0])

    sys.addaudithook(watch)
    from queenright.runtime.llm.model import Message, ToolSpec
    from tests.runtime.openai_server import Answer, openai_server

    async def main():
        tools = [ToolSpec("look", "Look.", {"type": "object", "properties": {}})]
        # Without usage, litellm counts tokens itself, and would download a tokenizer for Llama.
        without_usage = Answer(text=["hum"], usage=None, model="llama-3-8b")
        async with openai_server(without_usage, Answer(text=["hum"])) as server:
            os.environ["OPENAI_API_BASE"] = os.environ["HOSTED_VLLM_API_BASE"] = server.url
            for name in ("hosted_vllm/llama-3-8b", "openai/gpt-4o-mini"):
                model = provider_module.load_provider(name, timeout_seconds=30)
                print((await model.complete([Message(role="user", content="hi")], tools)).text)

    asyncio.run(main())
    print(sorted({str(host) for host in hosts}))
"""


def test_provider_makes_no_other_network_requests(tmp_path: Path) -> None:
    """Requests with tools need only litellm itself, with any version of mcp."""
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(NETWORK_SCRIPT)],
        capture_output=True,
        text=True,
        cwd=root,
        env=environment(PATH="", HOME=str(tmp_path), OPENAI_API_KEY=KEY),
        check=False,
    )

    assert result.stdout.splitlines() == ["hum", "hum", "['127.0.0.1']"], result.stderr


async def wait_for_event(event: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        await event.wait()


# -- forced tool calls and prompt caching ---------------------------------------------------------


async def test_must_call_forces_a_tool_call(serve_openai: Any) -> None:
    async with serve_openai(CALLS, HELLO, HELLO) as server:
        await make_provider().complete(CONVERSATION, TOOLS, must_call=True)
        await make_provider().complete(CONVERSATION, TOOLS)
        await make_provider().complete(CONVERSATION, [], must_call=True)

    assert [request.body.get("tool_choice") for request in server.requests] == ["required", None, None]


@pytest.mark.parametrize(
    "message",
    [
        "This model does not support this tool_choice",
        "Thinking may not be enabled when tool_choice forces tool use.",
        "Tool choice 'required' is not supported",
    ],
)
async def test_provider_rejecting_tool_choice_is_called_without_it(serve_openai: Any, message: str) -> None:
    model = make_provider()
    async with serve_openai(Refusal(status=400, message=message), CALLS, CALLS) as server:
        first_reply = await model.complete(CONVERSATION, TOOLS, must_call=True)
        await model.complete(CONVERSATION, TOOLS, must_call=True)

    assert first_reply.tool_calls
    assert [request.body.get("tool_choice") for request in server.requests] == ["required", None, None]


async def test_rejection_of_both_requests_changes_no_setting(serve_openai: Any) -> None:
    model = make_provider()
    refusal = Refusal(status=400, message="bad tool_choice, bad everything")
    async with serve_openai(refusal, refusal, CALLS) as server:
        with pytest.raises(ModelError, match="bad everything"):
            await model.complete(CONVERSATION, TOOLS, must_call=True)
        await model.complete(CONVERSATION, TOOLS, must_call=True)

    assert [request.body.get("tool_choice") for request in server.requests] == ["required", None, "required"]


async def test_server_without_streaming_or_tool_choice_still_works(serve_openai: Any) -> None:
    without_streaming = Refusal(status=400, message="stream is not supported")
    without_tool_choice = Refusal(status=400, message="tool_choice is not supported")
    async with serve_openai(without_streaming, without_tool_choice, without_streaming, CALLS) as server:
        reply = await make_provider().complete(CONVERSATION, TOOLS, must_call=True)

    assert len(reply.tool_calls) == 2
    assert len(server.requests) == 4


CACHED_EVENTS = (
    anthropic_event(
        "message_start",
        message={
            "id": "m1",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": "claude-sonnet-4-5",
            "usage": {
                "input_tokens": 20,
                "cache_read_input_tokens": 1500,
                "cache_creation_input_tokens": 30,
                "output_tokens": 1,
            },
        },
    ),
    *CLAUDE_EVENTS[1:],
)


async def test_caching_provider_gets_cache_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One marker is after the system prompt and covers the tools too, and one is after the last message."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    messages = [
        *CONVERSATION,
        Message(role="assistant", content="Well."),
        Message(role="user", content="And now?"),
    ]
    async with openai_server(Stream(events=CACHED_EVENTS)) as server:
        monkeypatch.setenv("ANTHROPIC_API_BASE", server.url.removesuffix("/v1"))
        reply = await LiteLlmProvider("anthropic/claude-sonnet-4-5").complete(messages, TOOLS, must_call=True)

    [body] = [request.body for request in server.requests]
    marker = {"type": "ephemeral"}
    assert [block.get("cache_control") for block in body["system"]] == [marker]
    markers = [block.get("cache_control") for row in body["messages"] for block in row["content"]]
    assert markers == [None, None, marker]
    assert body["tool_choice"] == {"type": "any"}
    assert body["tools"][0]["input_schema"]["properties"] == {"place": {"type": "string"}}
    assert (reply.input_tokens, reply.cached_tokens) == (1550, 1500)
    assert 0 < reply.cost < 1550 * 3e-6 + 15 * 15e-6


async def test_openai_gets_no_markers_and_reports_cached_tokens(serve_openai: Any) -> None:
    *events, usage = HELLO.build_events()
    make_chunk = json.loads(usage.removeprefix(b"data: "))
    make_chunk["usage"]["prompt_tokens_details"] = {"cached_tokens": 9}
    async with serve_openai(Stream(events=[*events, event(make_chunk)])) as server:
        reply = await make_provider().complete(CONVERSATION, TOOLS)

    assert reply.cached_tokens == 9
    assert "cache_control" not in json.dumps(server.requests[0].body)


@pytest.mark.parametrize(
    ("name", "is_marked"),
    [
        ("anthropic/claude-sonnet-4-5", True),
        ("claude-sonnet-4-5", True),
        ("bedrock/eu.anthropic.claude-sonnet-4-5-20250929-v1:0", True),
        ("bedrock/converse/anthropic.claude-haiku-4-5", True),
        ("bedrock/amazon.nova-pro-v1:0", True),
        ("vertex_ai/claude-sonnet-4-5", True),
        ("openrouter/anthropic/claude-sonnet-4.5", True),
        ("openai/gpt-5-mini", False),
        ("openai/claude-behind-my-own-gateway", False),
        ("gemini/gemini-2.5-pro", False),
        ("bedrock/meta.llama3", False),
        ("gpt-4o", False),
    ],
)
def test_cache_markers_are_for_providers_that_need_them(name: str, is_marked: bool) -> None:
    assert needs_cache_markers(name) is is_marked
