import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.runtime.llm.model import (
    LLMProvider,
    Message,
    ModelError,
    ModelReply,
    ToolCall,
    ToolSpec,
    TransientModelError,
)
from queenright.runtime.llm.scripted_provider import ScriptedProvider, ScriptError

CONVERSATION = [Message(role="user", content="How is it?")]
TOOLS = [ToolSpec("look", "Look.", {"type": "object"})]


def write_script(folder: Path, value: Any) -> Path:
    path = folder / "script.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


async def test_replies_come_in_order_and_requests_are_recorded() -> None:
    provider = ScriptedProvider([ModelReply(text="one"), ModelReply(text="two")])
    model: LLMProvider = provider

    texts = [(await model.complete(CONVERSATION, TOOLS)).text, (await model.complete([], [])).text]

    assert texts == ["one", "two"]
    assert [request.messages for request in provider.requests] == [tuple(CONVERSATION), ()]
    assert provider.requests[0].tools == tuple(TOOLS)
    assert model.name == "scripted"


async def test_exhausted_script_is_an_error() -> None:
    provider = ScriptedProvider([ModelReply()])
    await provider.complete(CONVERSATION, [])

    for _ in range(2):
        with pytest.raises(ModelError, match="exhausted, replies given: 1"):
            await provider.complete(CONVERSATION, [])


async def test_exception_is_raised_and_the_next_reply_follows() -> None:
    provider = ScriptedProvider([TransientModelError("full", retry_after=3), ModelReply(text="now")])

    with pytest.raises(TransientModelError, match="full"):
        await provider.complete(CONVERSATION, [])

    assert (await provider.complete(CONVERSATION, [])).text == "now"


async def test_reply_function_computes_reply_from_request() -> None:
    def echo(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        return ModelReply(text=f"{messages[-1].content} {tools[0].name}")

    assert (await ScriptedProvider([echo]).complete(CONVERSATION, TOOLS)).text == "How is it? look"


async def test_reply_function_can_be_async() -> None:
    release = asyncio.Event()

    async def reply_later(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ModelReply:
        await release.wait()
        return ModelReply(text="at last")

    task = asyncio.ensure_future(ScriptedProvider([reply_later]).complete(CONVERSATION, TOOLS))
    await asyncio.sleep(0)
    assert not task.done()
    release.set()

    assert (await task).text == "at last"


@given(st.text())
def test_streamed_pieces_form_the_text(text: str) -> None:
    pieces: list[str] = []

    asyncio.run(ScriptedProvider([ModelReply(text=text)]).complete(CONVERSATION, [], pieces.append))

    assert "".join(pieces) == text
    assert all(pieces)


async def test_script_is_read_from_a_file(tmp_path: Path) -> None:
    path = write_script(
        tmp_path,
        {
            "replies": [
                {
                    "text": "Tänzchen.",
                    "tool_calls": [
                        {"name": "look", "arguments": {"place": "hive"}},
                        {"name": "look", "arguments": '{"place": ', "id": "mine"},
                        {"name": "rest"},
                    ],
                    "input_tokens": 7,
                    "cost": 0.5,
                },
                {"error": "full", "transient": True, "retry_after": 2},
                {"error": "refused"},
                {"tool_calls": [{"name": "look"}]},
            ]
        },
    )
    provider = ScriptedProvider.load(path)

    first_reply = await provider.complete(CONVERSATION, [])
    with pytest.raises(TransientModelError, match="full") as transient_error:
        await provider.complete(CONVERSATION, [])
    with pytest.raises(ModelError, match="refused") as permanent_error:
        await provider.complete(CONVERSATION, [])
    last_reply = await provider.complete(CONVERSATION, [])

    assert first_reply.tool_calls == (
        ToolCall("call_1", "look", '{"place": "hive"}'),
        ToolCall("mine", "look", '{"place": '),
        ToolCall("call_3", "rest", "{}"),
    )
    assert (first_reply.text, first_reply.input_tokens, first_reply.cost) == ("Tänzchen.", 7, 0.5)
    assert transient_error.value.retry_after == 2
    assert not isinstance(permanent_error.value, TransientModelError)
    assert last_reply.tool_calls[0].id == "call_4"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "is not a script"),
        ({"replies": {}}, "is not a script"),
        ({"replies": ["hum"]}, r"replies\[0\]: must be an object"),
        ({"replies": [{}, {"txt": "hum"}]}, r"replies\[1\]: .*'txt'"),
        ({"replies": [{"text": 3}]}, r"replies\[0\]: text is 3"),
        ({"replies": [{"input_tokens": True}]}, "input_tokens is True"),
        ({"replies": [{"tool_calls": None}]}, r"replies\[0\]"),
        ({"replies": [{"tool_calls": [{"arguments": {}}]}]}, r"replies\[0\]: .*'name'"),
        ({"replies": [{"tool_calls": ["look"]}]}, r"replies\[0\]"),
        ({"replies": [{"error": "x", "transient": True, "retry_after": "soon"}]}, r"replies\[0\]: .*soon"),
    ],
)
def test_script_error_names_file_and_position(tmp_path: Path, value: Any, reason: str) -> None:
    path = write_script(tmp_path, value)

    with pytest.raises(ScriptError, match=reason) as error:
        ScriptedProvider.load(path)

    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_invalid_json_is_not_a_script(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "script.json"
    path.write_bytes(content)

    with pytest.raises(ScriptError, match="is not JSON"):
        ScriptedProvider.load(path)


def test_unreadable_file_is_rejected(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ScriptError, match="cannot be read"):
            ScriptedProvider.load(path)


async def test_script_placeholder_is_replaced_by_value_from_messages(tmp_path: Path) -> None:
    file = tmp_path / "script.json"
    call = {"name": "dismiss", "arguments": {"ticket_id": "$shown.ticket_id", "reason": "of $shown.x"}}
    file.write_text(json.dumps({"replies": [{"tool_calls": [call]}] * 2}))
    provider = ScriptedProvider.load(file)
    old_message, new_message = (
        Message(role="user", content=json.dumps({"ticket_id": name, "x": 1})) for name in ("t-1", 't-"2')
    )

    reply = await provider.complete(
        [old_message, new_message, Message(role="assistant", content="Well.")], []
    )

    assert json.loads(reply.tool_calls[0].arguments) == {"ticket_id": 't-"2', "reason": "of $shown.x"}
    with pytest.raises(ModelError, match=r"uses \$shown\.ticket_id, but no message"):
        await provider.complete([Message(role="user", content="Good day.")], [])
