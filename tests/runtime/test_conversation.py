from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.runtime.conversation import Conversation, _whole
from queenright.runtime.model import Message, ToolCall


def open_at(path: Path, messages: int = 10, characters: int = 1000) -> Conversation:
    return Conversation(path, max_messages=messages, max_characters=characters)


def say(text: str) -> Message:
    return Message(role="user", content=text)


def ask(*call_ids: str) -> Message:
    return Message(
        role="assistant", content="", tool_calls=tuple(ToolCall(i, "look", "{}") for i in call_ids)
    )


def answer(call_id: str) -> Message:
    return Message(role="tool", content="seen", tool_call_id=call_id)


def test_what_was_said_is_read_again_from_one_file_a_message(tmp_path: Path) -> None:
    said = [say("hive"), ask("1"), answer("1"), Message(role="assistant", content="Größe ✓")]
    first = open_at(tmp_path)
    for message in said:
        first.append(message)

    again = open_at(tmp_path)

    assert again.messages == said
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{n:010d}.json" for n in range(1, 5)]


def test_after_reading_again_new_messages_go_behind_the_old(tmp_path: Path) -> None:
    open_at(tmp_path).append(say("one"))
    open_at(tmp_path).append(say("two"))

    assert [m.content for m in open_at(tmp_path).messages] == ["one", "two"]


def test_below_the_limit_nothing_is_forgotten(tmp_path: Path) -> None:
    conversation = open_at(tmp_path, messages=4)
    for n in range(4):
        conversation.append(say(str(n)))

    assert conversation.compact() == 0
    assert len(conversation) == 4


def test_past_the_limit_the_newest_half_stays_also_on_disk(tmp_path: Path) -> None:
    """B53: bounded in messages."""
    conversation = open_at(tmp_path, messages=4)
    for n in range(9):
        conversation.append(say(str(n)))

    forgotten = conversation.compact()

    assert forgotten == 7
    assert [m.content for m in conversation.messages] == ["7", "8"]
    assert [m.content for m in open_at(tmp_path).messages] == ["7", "8"]


def test_characters_are_bounded_too(tmp_path: Path) -> None:
    """B53: bounded in characters, one long message included."""
    conversation = open_at(tmp_path, characters=1000)
    conversation.append(say("x" * 5000))
    conversation.append(say("y" * 400))
    conversation.append(say("z" * 400))

    conversation.compact()

    assert [m.content for m in conversation.messages] == ["z" * 400]


def test_a_message_longer_than_everything_is_clipped(tmp_path: Path) -> None:
    conversation = open_at(tmp_path, characters=1000)

    conversation.append(say("x" * 5000))

    assert len(conversation.messages[0].content) == 1000
    assert conversation.messages[0].content.endswith("[… clipped]")


@pytest.mark.parametrize(
    "torn", [b"", b'{"role": "us', b"[1]", b'{"role": "bee", "content": "x"}', b"\xff\xfe", b"{}"]
)
def test_a_torn_file_is_left_out(tmp_path: Path, torn: bytes) -> None:
    conversation = open_at(tmp_path)
    conversation.append(say("one"))
    conversation.append(say("two"))
    (tmp_path / "0000000001.json").write_bytes(torn)

    assert [m.content for m in open_at(tmp_path).messages] == ["two"]


def test_a_call_whose_answer_is_lost_is_left_out(tmp_path: Path) -> None:
    conversation = open_at(tmp_path)
    for message in (say("go"), ask("1", "2"), answer("1")):
        conversation.append(message)

    assert open_at(tmp_path).messages == [say("go")]


@given(st.lists(st.sampled_from([say("u"), ask("1"), ask("1", "2"), answer("1"), answer("2")]), max_size=12))
def test_what_is_kept_always_has_every_call_answered_and_every_answer_called(messages: list[Message]) -> None:
    kept = [m for _, m in _whole([(Path(str(n)), m) for n, m in enumerate(messages)])]

    asked: set[str] = set()
    open_calls: set[str] = set()
    for message in kept:
        if message.role == "tool":
            assert message.tool_call_id in asked
            open_calls.discard(message.tool_call_id)
        else:
            assert not open_calls
            asked = {c.id for c in message.tool_calls}
            open_calls = set(asked)
    assert not open_calls


def test_clearing_forgets_the_files(tmp_path: Path) -> None:
    conversation = open_at(tmp_path)
    conversation.append(say("one"))

    conversation.clear()

    assert list(tmp_path.iterdir()) == []
