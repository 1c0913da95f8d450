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
from queenright.runtime.storage.conversation import Conversation, Draft, Entry, EntryKind, estimated_tokens
from queenright.runtime.storage.files import Disk
from tests.runtime.damage import damage, damages

T = TypeVar("T")

DISK = Disk()


def open_at(path: Path) -> Conversation:
    return Conversation.open(path, disk=DISK, clock=lambda: 1_000.0)


def say(text: str, kind: EntryKind = EntryKind.USER) -> Draft:
    return Draft(kind=kind, message=Message(role="user", content=text))


def ask(*call_ids: str, arguments: str = "{}") -> Draft:
    calls = tuple(ToolCall(call_id, "look", arguments) for call_id in call_ids)
    message = Message(role="assistant", content="", tool_calls=calls)
    return Draft(kind=EntryKind.ASSISTANT, message=message, data={"turn": "node:3"})


def answer(call_id: str, text: str = "seen") -> Draft:
    return Draft(kind=EntryKind.TOOL, message=Message(role="tool", content=text, tool_call_id=call_id))


def summarise(entries: Sequence[Entry]) -> str:
    return f"{len(entries)} gone"


def texts(conversation: Conversation) -> list[str]:
    return [message.content for message in conversation.messages]


def parts(path: Path) -> list[str]:
    return sorted(part.name for part in (path / "parts").iterdir())


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def assert_well_formed(messages: Sequence[Message]) -> None:
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert message.tool_call_id in waiting
            waiting.remove(message.tool_call_id)
        else:
            assert not waiting
            waiting = [call.id for call in message.tool_calls]
    assert not waiting


async def test_conversation_round_trips_one_file_per_entry(tmp_path: Path) -> None:
    drafts = [say("hive", EntryKind.INPUT), ask("1"), answer("1"), say("Größe ✓ \ud800", EntryKind.FEEDBACK)]

    added = await open_at(tmp_path).append(*drafts)

    again = open_at(tmp_path)
    assert list(again.entries) == added
    assert again.messages == [draft.message for draft in drafts]
    assert again.last_seq == 4
    assert parts(tmp_path) == [f"{n:010d}.json" for n in range(1, 5)]


async def test_entry_equals_its_stored_form(tmp_path: Path) -> None:
    draft = Draft(kind=EntryKind.USER, message=say("x").message, visit_id="v:1", data={"t": (1, {2: None})})

    [live] = await open_at(tmp_path).append(draft)

    assert [live] == list(open_at(tmp_path).entries)
    assert live.data == {"t": [1, {"2": None}]}
    assert live.at == 1_000.0


async def test_concurrent_entries_are_all_stored_in_one_order(tmp_path: Path) -> None:
    conversation = open_at(tmp_path)

    await asyncio.gather(*(conversation.append(say(str(n)), say(f"{n}b")) for n in range(20)))

    assert [entry.seq for entry in conversation.entries] == list(range(1, 41))
    assert conversation.entries == open_at(tmp_path).entries


async def test_entry_is_stored_despite_cancellation(tmp_path: Path) -> None:
    conversation = open_at(tmp_path)
    writing = asyncio.ensure_future(conversation.append(say("x")))
    await asyncio.sleep(0)

    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing

    assert texts(conversation) == texts(open_at(tmp_path)) == ["x"]


async def test_failed_append_leaves_no_entry_and_skips_its_number(tmp_path: Path) -> None:
    conversation = open_at(tmp_path)
    (tmp_path / "parts").write_bytes(b"")

    with pytest.raises(FileExistsError):
        await conversation.append(say("lost"))
    (tmp_path / "parts").unlink()
    [entry] = await conversation.append(say("kept"))

    assert entry.seq == 2
    assert texts(conversation) == texts(open_at(tmp_path)) == ["kept"]


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
    conversation = open_at(tmp_path)

    with pytest.raises(ValueError, match=r"summary|kind"):
        await conversation.append(draft)

    assert conversation.entries == ()
    assert conversation.last_seq == 0


async def test_answers_follow_their_calls_in_any_arrival_order(tmp_path: Path) -> None:
    conversation = open_at(tmp_path)
    drafts = [ask("1", "2"), answer("2", "b"), say("meanwhile"), answer("1", "a"), answer("1", "twice")]

    await conversation.append(answer("1", "of nothing"), *drafts)

    assert texts(conversation) == ["", "b", "a", "meanwhile"]


async def test_call_ids_may_repeat_from_turn_to_turn(tmp_path: Path) -> None:
    conversation = open_at(tmp_path)

    await conversation.append(ask("1"), answer("1", "a"), ask("1"), answer("1", "b"))

    assert texts(conversation) == ["", "a", "", "b"]


async def test_unanswered_call_is_hidden_until_repaired(tmp_path: Path) -> None:
    conversation = open_at(tmp_path)
    await conversation.append(say("go"), ask("1", "2"), answer("1"))
    assert texts(conversation) == ["go"]

    [repaired] = await conversation.repair("error: interrupted")

    assert texts(conversation) == texts(open_at(tmp_path)) == ["go", "", "seen", "error: interrupted"]
    assert repaired.kind is EntryKind.TOOL
    assert repaired.data["outcome"] == "error"
    assert repaired.data["error_type"] == "interrupted"
    assert repaired.data["tool"] == "look"
    assert repaired.data["call_id"] == "2"
    assert repaired.data["turn"] == "node:3"
    assert await conversation.repair("again") == []


async def test_old_unanswered_call_is_repaired_in_place(tmp_path: Path) -> None:
    await open_at(tmp_path).append(ask("1"), answer("1", "lost"), ask("1"), answer("1", "b"), say("end"))
    (tmp_path / "parts" / "0000000002.json").write_bytes(b"")
    conversation = open_at(tmp_path)

    await conversation.repair("interrupted")

    assert texts(conversation) == texts(open_at(tmp_path)) == ["", "interrupted", "", "b", "end"]


async def test_conversation_within_limits_is_not_compacted(tmp_path: Path) -> None:
    conversation = open_at(tmp_path)
    await conversation.append(*(say("x" * 40) for _ in range(4)))

    assert await conversation.compact(max_tokens=56, keep_messages=4, summary=summarise) == 0
    assert len(conversation.entries) == 4


async def test_compaction_replaces_oldest_entries_on_disk(tmp_path: Path) -> None:
    """B53: bounded in tokens."""
    conversation = open_at(tmp_path)
    await conversation.append(*(say(f"{n}" * 396) for n in range(10)))

    gone = await conversation.compact(max_tokens=1000, summary=summarise)

    assert gone == 7
    assert texts(conversation) == texts(open_at(tmp_path)) == ["7 gone", "7" * 396, "8" * 396, "9" * 396]
    assert estimated_tokens(conversation.messages) <= 500
    assert [entry.kind for entry in conversation.entries][:2] == [EntryKind.SUMMARY, EntryKind.USER]
    assert len(parts(tmp_path)) == 4


async def test_conversation_is_bounded_in_messages(tmp_path: Path) -> None:
    """B53: bounded in messages."""
    conversation = open_at(tmp_path)
    for n in range(100):
        await conversation.append(say(str(n)))
        await conversation.compact(max_tokens=10_000, keep_messages=4, summary=summarise)

        assert len(conversation.messages) <= 4
        assert texts(conversation)[-1] == str(n)

    assert conversation.last_seq == 100


async def test_second_summary_includes_the_first(tmp_path: Path) -> None:
    conversation = open_at(tmp_path)
    given: list[list[str]] = []

    def listed(entries: Sequence[Entry]) -> str:
        given.append([entry.message.content for entry in entries])
        return f"summary {len(given)}"

    for n in range(6):
        await conversation.append(say(str(n)))
        await conversation.compact(max_tokens=1000, keep_messages=3, summary=listed)

    assert given == [["0", "1", "2"], ["summary 1", "3", "4"]]
    assert texts(conversation) == ["summary 2", "5"]


async def test_oversized_entry_is_clipped(tmp_path: Path) -> None:
    """B53: one long message included."""
    conversation = open_at(tmp_path)
    await conversation.append(
        say("a"), ask("1", arguments='{"text": "' + "\\" * 9000 + '"}'), answer("1", "x" * 9000)
    )

    await conversation.compact(max_tokens=400, summary=summarise)

    assert estimated_tokens(conversation.messages) <= 400
    assert texts(conversation)[-1].startswith("xxx")
    assert texts(conversation)[-1].endswith("[… clipped]")
    assert conversation.entries == open_at(tmp_path).entries


async def test_unanswered_calls_survive_compaction(tmp_path: Path) -> None:
    conversation = open_at(tmp_path)
    await conversation.append(*(say("x" * 100) for _ in range(9)), ask("1", "2"), answer("1"), say("y" * 100))

    await conversation.compact(max_tokens=100, summary=summarise)
    await conversation.append(answer("2"))

    assert texts(conversation)[1:4] == ["", "seen", "seen"]


async def test_clear_removes_entries_and_keeps_numbering(tmp_path: Path) -> None:
    conversation = open_at(tmp_path)
    await conversation.append(say("one"), say("two"))

    await conversation.clear()

    assert parts(tmp_path) == []
    assert open_at(tmp_path).last_seq == conversation.last_seq == 2
    assert open_at(tmp_path).skipped_files == ()
    [entry] = await open_at(tmp_path).append(say("three"))
    assert entry.seq == 3


async def test_clear_of_empty_conversation_writes_nothing(tmp_path: Path) -> None:
    await open_at(tmp_path).clear()

    assert os.listdir(tmp_path) == []


@given(broken=st.dictionaries(st.integers(1, 8), damages, max_size=8), litter=st.booleans())
def test_valid_entries_are_read_despite_invalid_files(broken: dict[int, str], litter: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        run(open_at(path).append(*(say(str(n)) for n in range(1, 9))))
        for seq, kind in broken.items():
            damage(path / "parts" / f"{seq:010d}.json", kind)
        if litter:
            for name in ("notes.txt", "1.json", "0000000002.json.7-ab.tmp", "00000000000000000003.json"):
                (path / "parts" / name).write_bytes(b"{}")
            (path / "cleared.json").mkdir()

        conversation = open_at(path)

        assert texts(conversation) == [str(n) for n in range(1, 9) if n not in broken]
        there = [seq for seq, kind in broken.items() if kind != "gone"]
        assert len(conversation.skipped_files) == len(there) + (4 if litter else 0)
        assert all(skipped.reason for skipped in conversation.skipped_files)
        [added] = run(conversation.append(say("new")))
        assert texts(open_at(path))[-1] == "new"
        assert added.seq > max([*(set(range(1, 9)) - set(broken)), *there])


def test_entry_numbers_of_any_length_are_consecutive(tmp_path: Path) -> None:
    (tmp_path / "parts" / "9999999999.json").mkdir(parents=True)

    run(open_at(tmp_path).append(say("x")))

    assert texts(open_at(tmp_path)) == ["x"]
    assert open_at(tmp_path).last_seq == 10**10


def test_file_in_place_of_the_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "parts").write_bytes(b"")

    conversation = open_at(tmp_path)

    assert conversation.entries == ()
    assert [skipped.path for skipped in conversation.skipped_files] == [tmp_path / "parts"]


async def test_full_disk_while_shortening_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversation = open_at(tmp_path)
    await conversation.append(*(say("x" * 100) for _ in range(9)))
    before = conversation.entries

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="full"):
            await conversation.compact(max_tokens=100, summary=summarise)

    assert conversation.entries == open_at(tmp_path).entries == before
    assert len(parts(tmp_path)) == 9


def test_reader_retries_after_concurrent_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_at(tmp_path)
    run(writer.append(*(say(str(n)) for n in range(9))))
    listings: list[list[str]] = []
    listdir = os.listdir

    def overtaken(path: Path) -> list[str]:
        names = listdir(path)
        listings.append(names)
        if len(listings) == 1:
            # Between the reader's listing and reading of the files.
            run(writer.compact(max_tokens=1000, keep_messages=4, summary=summarise))
        return names

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", overtaken)
        reader = open_at(tmp_path)

    assert reader.entries == writer.entries
    assert reader.skipped_files == ()


def test_tokens_are_a_quarter_of_the_characters_and_four_a_message() -> None:
    result = Message(role="assistant", content="abc", tool_calls=(ToolCall("1", "look", '{"a":1}'),))

    assert estimated_tokens([]) == 0
    assert estimated_tokens([Message(role="user", content="12345")]) == 6
    assert estimated_tokens([result]) == 8


words = st.text(max_size=300)


class ConversationMachine(RuleBasedStateMachine):
    """Append, repair, compact, clear and reopen in any order, with kills in between."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp())
        self.conversation = open_at(self.path)
        self.last_seq = 0
        self.newest: Message | None = None

    def teardown(self) -> None:
        shutil.rmtree(self.path)

    def _files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.path.rglob("*.json")}

    def _killed_before_removing(self, before: dict[Path, bytes], data: st.DataObject) -> None:
        removed = sorted(set(before) - set(self._files()))
        if removed:
            for path in data.draw(st.sets(st.sampled_from(removed))):
                path.write_bytes(before[path])

    @rule(
        drafts=st.lists(
            st.one_of(
                words.map(say),
                st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(lambda ids: ask(*ids)),
                st.builds(answer, st.sampled_from("abc"), words),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def append(self, drafts: list[Draft]) -> None:
        added = run(self.conversation.append(*drafts))

        assert [entry.seq for entry in added] == [self.last_seq + n for n in range(1, len(drafts) + 1)]
        self.last_seq = added[-1].seq
        self.newest = drafts[-1].message if drafts[-1].kind is EntryKind.USER else None

    @rule()
    def repair(self) -> None:
        self.last_seq += len(run(self.conversation.repair("interrupted")))
        self.newest = None

        entries = self.conversation.entries
        messages = self.conversation.messages
        assert all(e.message in messages for e in entries if e.kind is EntryKind.ASSISTANT)

    @rule(
        max_tokens=st.integers(200, 600),
        keep=st.none() | st.integers(2, 20),
        summary=words,
        killed=st.booleans(),
        data=st.data(),
    )
    def compact(
        self, max_tokens: int, keep: int | None, summary: str, killed: bool, data: st.DataObject
    ) -> None:
        before = self._files()
        count = len(self.conversation.entries)

        gone = run(
            self.conversation.compact(max_tokens=max_tokens, keep_messages=keep, summary=lambda _: summary)
        )

        assert len(self.conversation.entries) == count - gone + (gone > 0)
        assert estimated_tokens(self.conversation.messages) <= max_tokens
        if gone:
            assert self.conversation.entries[0].kind is EntryKind.SUMMARY
        if self.newest is not None:
            assert self.conversation.messages[-1].content[:10] == self.newest.content[:10]
        if killed:
            self._killed_before_removing(before, data)
            self.reopen(same=False)

    @rule(killed=st.booleans(), data=st.data())
    def clear(self, killed: bool, data: st.DataObject) -> None:
        before = self._files()

        run(self.conversation.clear())

        assert self.conversation.entries == ()
        self.newest = None
        if killed:
            self._killed_before_removing(before, data)
            self.reopen(same=False)

    @rule()
    def read(self) -> None:
        assert open_at(self.path).entries == self.conversation.entries

    @rule()
    def reopen(self, same: bool = True) -> None:
        was, self.conversation = self.conversation, open_at(self.path)

        # After a kill, late answers of a removed call may be back; they are never shown.
        assert self.conversation.messages == was.messages
        if same:
            assert self.conversation.entries == was.entries

    @invariant()
    def nothing_is_skipped_and_no_number_given_twice(self) -> None:
        assert self.conversation.skipped_files == ()
        assert self.conversation.last_seq == self.last_seq
        seqs = [entry.seq for entry in self.conversation.entries]
        assert seqs == sorted(set(seqs))

    @invariant()
    def what_is_shown_is_well_formed(self) -> None:
        assert_well_formed(self.conversation.messages)


TestConversation = ConversationMachine.TestCase
TestConversation.settings = settings(stateful_step_count=20)
