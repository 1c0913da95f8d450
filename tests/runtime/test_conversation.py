import asyncio
import errno
import os
import shutil
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from queenright.runtime.llm.model import Message, ToolCall
from queenright.runtime.storage.conversation import Conversation, Draft, Entry, EntryKind, estimate_tokens
from queenright.runtime.storage.files import Disk
from tests.runtime.damage import damage, damages

T = TypeVar("T")

DISK = Disk()


def open_conversation(path: Path) -> Conversation:
    return Conversation.open(path, disk=DISK, clock=lambda: 1_000.0)


def user_draft(text: str, kind: EntryKind = EntryKind.USER) -> Draft:
    return Draft(kind=kind, message=Message(role="user", content=text))


def call_draft(*call_ids: str, arguments: str = "{}") -> Draft:
    calls = tuple(ToolCall(call_id, "look", arguments) for call_id in call_ids)
    message = Message(role="assistant", content="", tool_calls=calls)
    return Draft(kind=EntryKind.ASSISTANT, message=message, data={"turn": "node:3"})


def answer_draft(call_id: str, text: str = "seen") -> Draft:
    return Draft(kind=EntryKind.TOOL, message=Message(role="tool", content=text, tool_call_id=call_id))


def summarize(entries: Sequence[Entry]) -> str:
    return f"{len(entries)} gone"


def list_texts(conversation: Conversation) -> list[str]:
    return [message.content for message in conversation.messages]


def list_parts(path: Path) -> list[str]:
    return sorted(part.name for part in (path / "parts").iterdir())


def run_coroutine(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def assert_well_formed(messages: Sequence[Message]) -> None:
    open_call_ids: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert message.tool_call_id in open_call_ids
            open_call_ids.remove(message.tool_call_id)
        else:
            assert not open_call_ids
            open_call_ids = [call.id for call in message.tool_calls]
    assert not open_call_ids


async def test_conversation_round_trips_with_one_file_per_entry(tmp_path: Path) -> None:
    drafts = [
        user_draft("hive", EntryKind.INPUT),
        call_draft("1"),
        answer_draft("1"),
        user_draft("Größe ✓ \ud800", EntryKind.FEEDBACK),
    ]

    entries = await open_conversation(tmp_path).append(*drafts)

    reopened = open_conversation(tmp_path)
    assert list(reopened.entries) == entries
    assert reopened.messages == [draft.message for draft in drafts]
    assert reopened.last_seq == 4
    assert list_parts(tmp_path) == [f"{n:010d}.json" for n in range(1, 5)]


async def test_entry_equals_its_stored_form(tmp_path: Path) -> None:
    draft = Draft(
        kind=EntryKind.USER, message=user_draft("x").message, visit_id="v:1", data={"t": (1, {2: None})}
    )

    [entry] = await open_conversation(tmp_path).append(draft)

    assert [entry] == list(open_conversation(tmp_path).entries)
    assert entry.data == {"t": [1, {"2": None}]}
    assert entry.at == 1_000.0


async def test_concurrent_entries_are_all_stored_in_one_order(tmp_path: Path) -> None:
    conversation = open_conversation(tmp_path)

    await asyncio.gather(*(conversation.append(user_draft(str(n)), user_draft(f"{n}b")) for n in range(20)))

    assert [entry.seq for entry in conversation.entries] == list(range(1, 41))
    assert conversation.entries == open_conversation(tmp_path).entries


async def test_entry_is_stored_despite_cancellation(tmp_path: Path) -> None:
    conversation = open_conversation(tmp_path)
    append_task = asyncio.ensure_future(conversation.append(user_draft("x")))
    await asyncio.sleep(0)

    append_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await append_task

    assert list_texts(conversation) == list_texts(open_conversation(tmp_path)) == ["x"]


async def test_failed_append_leaves_no_entry_and_skips_its_number(tmp_path: Path) -> None:
    conversation = open_conversation(tmp_path)
    (tmp_path / "parts").write_bytes(b"")

    with pytest.raises(FileExistsError):
        await conversation.append(user_draft("lost"))
    (tmp_path / "parts").unlink()
    [entry] = await conversation.append(user_draft("kept"))

    assert entry.seq == 2
    assert list_texts(conversation) == list_texts(open_conversation(tmp_path)) == ["kept"]


@pytest.mark.parametrize(
    "draft",
    [
        Draft(kind=EntryKind.SUMMARY, message=Message(role="user", content="x")),
        Draft(kind=EntryKind.TOOL, message=Message(role="user", content="x")),
        Draft(
            kind=EntryKind.USER,
            message=Message(role="user", content="x", tool_calls=(ToolCall("1", "a", ""),)),
        ),
    ],
)
async def test_unreadable_draft_is_rejected(tmp_path: Path, draft: Draft) -> None:
    conversation = open_conversation(tmp_path)

    with pytest.raises(ValueError, match=r"summary|kind"):
        await conversation.append(draft)

    assert conversation.entries == ()
    assert conversation.last_seq == 0


async def test_answers_follow_their_calls_in_any_arrival_order(tmp_path: Path) -> None:
    conversation = open_conversation(tmp_path)
    drafts = [
        call_draft("1", "2"),
        answer_draft("2", "b"),
        user_draft("meanwhile"),
        answer_draft("1", "a"),
        answer_draft("1", "twice"),
    ]

    await conversation.append(answer_draft("1", "of nothing"), *drafts)

    assert list_texts(conversation) == ["", "b", "a", "meanwhile"]


async def test_call_ids_may_repeat_from_turn_to_turn(tmp_path: Path) -> None:
    conversation = open_conversation(tmp_path)

    await conversation.append(
        call_draft("1"), answer_draft("1", "a"), call_draft("1"), answer_draft("1", "b")
    )

    assert list_texts(conversation) == ["", "a", "", "b"]


async def test_unanswered_call_is_hidden_until_repaired(tmp_path: Path) -> None:
    conversation = open_conversation(tmp_path)
    await conversation.append(user_draft("go"), call_draft("1", "2"), answer_draft("1"))
    assert list_texts(conversation) == ["go"]

    [entry] = await conversation.repair("error: interrupted")

    assert (
        list_texts(conversation)
        == list_texts(open_conversation(tmp_path))
        == ["go", "", "seen", "error: interrupted"]
    )
    assert entry.kind is EntryKind.TOOL
    assert entry.data["outcome"] == "error"
    assert entry.data["error_type"] == "interrupted"
    assert entry.data["tool"] == "look"
    assert entry.data["call_id"] == "2"
    assert entry.data["turn"] == "node:3"
    assert await conversation.repair("again") == []


async def test_old_unanswered_call_is_repaired_in_place(tmp_path: Path) -> None:
    await open_conversation(tmp_path).append(
        call_draft("1"), answer_draft("1", "lost"), call_draft("1"), answer_draft("1", "b"), user_draft("end")
    )
    (tmp_path / "parts" / "0000000002.json").write_bytes(b"")
    conversation = open_conversation(tmp_path)

    await conversation.repair("interrupted")

    assert (
        list_texts(conversation)
        == list_texts(open_conversation(tmp_path))
        == ["", "interrupted", "", "b", "end"]
    )


async def test_conversation_within_limits_is_not_compacted(tmp_path: Path) -> None:
    conversation = open_conversation(tmp_path)
    await conversation.append(*(user_draft("x" * 40) for _ in range(4)))

    assert await conversation.compact(max_tokens=56, keep_messages=4, summary=summarize) == 0
    assert len(conversation.entries) == 4


async def test_compaction_replaces_oldest_entries_on_disk(tmp_path: Path) -> None:
    """B53: the number of tokens is bounded."""
    conversation = open_conversation(tmp_path)
    await conversation.append(*(user_draft(f"{n}" * 396) for n in range(10)))

    removed = await conversation.compact(max_tokens=1000, summary=summarize)

    assert removed == 7
    assert (
        list_texts(conversation)
        == list_texts(open_conversation(tmp_path))
        == ["7 gone", "7" * 396, "8" * 396, "9" * 396]
    )
    assert estimate_tokens(conversation.messages) <= 500
    assert [entry.kind for entry in conversation.entries][:2] == [EntryKind.SUMMARY, EntryKind.USER]
    assert len(list_parts(tmp_path)) == 4


async def test_conversation_is_bounded_in_messages(tmp_path: Path) -> None:
    """B53: the number of messages is bounded."""
    conversation = open_conversation(tmp_path)
    for n in range(100):
        await conversation.append(user_draft(str(n)))
        await conversation.compact(max_tokens=10_000, keep_messages=4, summary=summarize)

        assert len(conversation.messages) <= 4
        assert list_texts(conversation)[-1] == str(n)

    assert conversation.last_seq == 100


async def test_second_summary_includes_the_first(tmp_path: Path) -> None:
    conversation = open_conversation(tmp_path)
    summarized_texts: list[list[str]] = []

    def summarize_texts(entries: Sequence[Entry]) -> str:
        summarized_texts.append([entry.message.content for entry in entries])
        return f"summary {len(summarized_texts)}"

    for n in range(6):
        await conversation.append(user_draft(str(n)))
        await conversation.compact(max_tokens=1000, keep_messages=3, summary=summarize_texts)

    assert summarized_texts == [["0", "1", "2"], ["summary 1", "3", "4"]]
    assert list_texts(conversation) == ["summary 2", "5"]


async def test_oversized_entry_is_clipped(tmp_path: Path) -> None:
    """B53: a single long message is bounded too."""
    conversation = open_conversation(tmp_path)
    await conversation.append(
        user_draft("a"),
        call_draft("1", arguments='{"text": "' + "\\" * 9000 + '"}'),
        answer_draft("1", "x" * 9000),
    )

    await conversation.compact(max_tokens=400, summary=summarize)

    assert estimate_tokens(conversation.messages) <= 400
    assert list_texts(conversation)[-1].startswith("xxx")
    assert list_texts(conversation)[-1].endswith("[… clipped]")
    assert conversation.entries == open_conversation(tmp_path).entries


async def test_unanswered_calls_survive_compaction(tmp_path: Path) -> None:
    conversation = open_conversation(tmp_path)
    await conversation.append(
        *(user_draft("x" * 100) for _ in range(9)),
        call_draft("1", "2"),
        answer_draft("1"),
        user_draft("y" * 100),
    )

    await conversation.compact(max_tokens=100, summary=summarize)
    await conversation.append(answer_draft("2"))

    assert list_texts(conversation)[1:4] == ["", "seen", "seen"]


async def test_clear_removes_entries_and_keeps_numbering(tmp_path: Path) -> None:
    conversation = open_conversation(tmp_path)
    await conversation.append(user_draft("one"), user_draft("two"))

    await conversation.clear()

    assert list_parts(tmp_path) == []
    assert open_conversation(tmp_path).last_seq == conversation.last_seq == 2
    assert open_conversation(tmp_path).skipped_files == ()
    [entry] = await open_conversation(tmp_path).append(user_draft("three"))
    assert entry.seq == 3


async def test_clear_of_empty_conversation_writes_nothing(tmp_path: Path) -> None:
    await open_conversation(tmp_path).clear()

    assert os.listdir(tmp_path) == []


@given(broken=st.dictionaries(st.integers(1, 8), damages, max_size=8), other_files=st.booleans())
def test_valid_entries_are_read_despite_invalid_files(broken: dict[int, str], other_files: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        run_coroutine(open_conversation(path).append(*(user_draft(str(n)) for n in range(1, 9))))
        for seq, kind in broken.items():
            damage(path / "parts" / f"{seq:010d}.json", kind)
        if other_files:
            for name in ("notes.txt", "1.json", "0000000002.json.7-ab.tmp", "00000000000000000003.json"):
                (path / "parts" / name).write_bytes(b"{}")
            (path / "cleared.json").mkdir()

        conversation = open_conversation(path)

        assert list_texts(conversation) == [str(n) for n in range(1, 9) if n not in broken]
        damaged_numbers = [seq for seq, kind in broken.items() if kind != "gone"]
        assert len(conversation.skipped_files) == len(damaged_numbers) + (4 if other_files else 0)
        assert all(skipped.reason for skipped in conversation.skipped_files)
        [entry] = run_coroutine(conversation.append(user_draft("new")))
        assert list_texts(open_conversation(path))[-1] == "new"
        assert entry.seq > max([*(set(range(1, 9)) - set(broken)), *damaged_numbers])


def test_entry_numbers_of_any_length_are_consecutive(tmp_path: Path) -> None:
    (tmp_path / "parts" / "9999999999.json").mkdir(parents=True)

    run_coroutine(open_conversation(tmp_path).append(user_draft("x")))

    assert list_texts(open_conversation(tmp_path)) == ["x"]
    assert open_conversation(tmp_path).last_seq == 10**10


def test_file_in_place_of_the_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "parts").write_bytes(b"")

    conversation = open_conversation(tmp_path)

    assert conversation.entries == ()
    assert [skipped.path for skipped in conversation.skipped_files] == [tmp_path / "parts"]


async def test_full_disk_while_shortening_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = open_conversation(tmp_path)
    await conversation.append(*(user_draft("x" * 100) for _ in range(9)))
    previous = conversation.entries

    def fail_full(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", fail_full)
        with pytest.raises(OSError, match="full"):
            await conversation.compact(max_tokens=100, summary=summarize)

    assert conversation.entries == open_conversation(tmp_path).entries == previous
    assert len(list_parts(tmp_path)) == 9


def test_reader_retries_after_concurrent_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_conversation(tmp_path)
    run_coroutine(writer.append(*(user_draft(str(n)) for n in range(9))))
    listings: list[list[str]] = []
    listdir = os.listdir

    def compact_first(path: Path) -> list[str]:
        names = listdir(path)
        listings.append(names)
        if len(listings) == 1:
            # This is after the reader has listed the files, and before it reads them.
            run_coroutine(writer.compact(max_tokens=1000, keep_messages=4, summary=summarize))
        return names

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", compact_first)
        reader = open_conversation(tmp_path)

    assert reader.entries == writer.entries
    assert reader.skipped_files == ()


def test_token_estimate_is_a_quarter_of_the_characters_plus_four_per_message() -> None:
    call_message = Message(role="assistant", content="abc", tool_calls=(ToolCall("1", "look", '{"a":1}'),))

    assert estimate_tokens([]) == 0
    assert estimate_tokens([Message(role="user", content="12345")]) == 6
    assert estimate_tokens([call_message]) == 8


texts = st.text(max_size=300)


class ConversationMachine(RuleBasedStateMachine):
    """Append, repair, compact, clear and reopen a conversation in any order, with kills."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.conversation = open_conversation(self.path)
        self.last_seq = 0
        self.newest: Message | None = None

    def teardown(self) -> None:
        shutil.rmtree(self.path)

    def _read_files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.path.rglob("*.json")}

    def _undo_removals(self, previous: dict[Path, bytes], data: st.DataObject) -> None:
        removed = sorted(set(previous) - set(self._read_files()))
        if removed:
            for path in data.draw(st.sets(st.sampled_from(removed))):
                path.write_bytes(previous[path])

    @rule(
        drafts=st.lists(
            st.one_of(
                texts.map(user_draft),
                st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(lambda ids: call_draft(*ids)),
                st.builds(answer_draft, st.sampled_from("abc"), texts),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def append(self, drafts: list[Draft]) -> None:
        entries = run_coroutine(self.conversation.append(*drafts))

        assert [entry.seq for entry in entries] == [self.last_seq + n for n in range(1, len(drafts) + 1)]
        self.last_seq = entries[-1].seq
        self.newest = drafts[-1].message if drafts[-1].kind is EntryKind.USER else None

    @rule()
    def repair(self) -> None:
        self.last_seq += len(run_coroutine(self.conversation.repair("interrupted")))
        self.newest = None

        entries = self.conversation.entries
        messages = self.conversation.messages
        assert all(e.message in messages for e in entries if e.kind is EntryKind.ASSISTANT)

    @rule(
        max_tokens=st.integers(200, 600),
        keep=st.none() | st.integers(2, 20),
        summary=texts,
        is_killed=st.booleans(),
        data=st.data(),
    )
    def compact(
        self, max_tokens: int, keep: int | None, summary: str, is_killed: bool, data: st.DataObject
    ) -> None:
        previous = self._read_files()
        entry_count = len(self.conversation.entries)

        removed = run_coroutine(
            self.conversation.compact(max_tokens=max_tokens, keep_messages=keep, summary=lambda _: summary)
        )

        assert len(self.conversation.entries) == entry_count - removed + (removed > 0)
        assert estimate_tokens(self.conversation.messages) <= max_tokens
        if removed:
            assert self.conversation.entries[0].kind is EntryKind.SUMMARY
        if self.newest is not None:
            assert self.conversation.messages[-1].content[:10] == self.newest.content[:10]
        if is_killed:
            self._undo_removals(previous, data)
            self.reopen(is_unchanged=False)

    @rule(is_killed=st.booleans(), data=st.data())
    def clear(self, is_killed: bool, data: st.DataObject) -> None:
        previous = self._read_files()

        run_coroutine(self.conversation.clear())

        assert self.conversation.entries == ()
        self.newest = None
        if is_killed:
            self._undo_removals(previous, data)
            self.reopen(is_unchanged=False)

    @rule()
    def read(self) -> None:
        assert open_conversation(self.path).entries == self.conversation.entries

    @rule()
    def reopen(self, is_unchanged: bool = True) -> None:
        previous, self.conversation = self.conversation, open_conversation(self.path)

        # After a kill, late answers to a removed call may reappear, but never among the messages.
        assert self.conversation.messages == previous.messages
        if is_unchanged:
            assert self.conversation.entries == previous.entries

    @invariant()
    def sequence_numbers_are_unique_and_complete(self) -> None:
        assert self.conversation.skipped_files == ()
        assert self.conversation.last_seq == self.last_seq
        seqs = [entry.seq for entry in self.conversation.entries]
        assert seqs == sorted(set(seqs))

    @invariant()
    def shown_messages_are_well_formed(self) -> None:
        assert_well_formed(self.conversation.messages)


TestConversation = ConversationMachine.TestCase
TestConversation.settings = settings(stateful_step_count=20)
