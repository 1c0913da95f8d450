from hypothesis import given
from hypothesis import strategies as st

from queenright.runtime.llm.model import Message, ToolCall
from queenright.runtime.nodes.digest import digest
from queenright.runtime.storage.entries import Draft, Entry, EntryKind


def make_entry(kind: EntryKind, content: str, *calls: ToolCall, **data: str) -> Entry:
    role = {EntryKind.ASSISTANT: "assistant", EntryKind.TOOL: "tool"}.get(kind, "user")
    message = Message(role=role, content=content, tool_calls=calls)  # type: ignore[arg-type]
    return Entry.of(Draft(kind=kind, message=message, data=data), seq=1, at=0.0)


def test_digest_keeps_task_and_a_line_per_message() -> None:
    text = digest(
        [
            make_entry(EntryKind.INPUT, "Find the queen."),
            make_entry(EntryKind.ASSISTANT, "Looking for her.", ToolCall("c", "look", '{"place": "hive"}')),
            make_entry(EntryKind.TOOL, "empty", tool="look"),
            make_entry(EntryKind.USER, "Look again."),
            make_entry(EntryKind.FEEDBACK, "Hurry."),
        ],
        limit=1_000,
    )

    assert text.splitlines() == [
        "(Earlier messages were shortened.) The task was:",
        "Find the queen.",
        "Since then:",
        '- you said: Looking for her.; called look({"place": "hive"})',
        "- look answered: empty",
        "- the user: Look again.",
        "- instruction: Hurry.",
    ]


def test_digest_of_a_digest_keeps_its_task_and_its_lines() -> None:
    first_digest = digest(
        [make_entry(EntryKind.INPUT, "Find the queen."), make_entry(EntryKind.USER, "One.")], limit=1_000
    )

    second_digest = digest(
        [make_entry(EntryKind.SUMMARY, first_digest), make_entry(EntryKind.USER, "Two.")], limit=1_000
    )

    assert second_digest == first_digest + "\n- the user: Two."


def test_newer_task_replaces_the_old_one() -> None:
    text = digest([make_entry(EntryKind.INPUT, "Old."), make_entry(EntryKind.INPUT, "New.")], limit=1_000)

    assert text.splitlines()[1:] == ["New.", "Since then:", "- an earlier task: Old."]


KINDS = st.sampled_from([EntryKind.INPUT, EntryKind.USER, EntryKind.FEEDBACK, EntryKind.SUMMARY])


@given(texts=st.lists(st.tuples(KINDS, st.text(max_size=300)), max_size=12), limit=st.integers(84, 2_000))
def test_digest_is_not_longer_than_the_limit(texts: list[tuple[EntryKind, str]], limit: int) -> None:
    assert len(digest([make_entry(kind, text) for kind, text in texts], limit=limit)) <= limit
