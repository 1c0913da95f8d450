import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.instrumentation.verdict import Verdict
from queenright.runtime.llm.model import Message, ToolCall
from queenright.runtime.nodes.cursor import GUARD_ROWS, NodeCursor
from queenright.runtime.storage.entries import Draft, Entry, EntryKind


def make_entry(seq: int, kind: EntryKind, message: Message, visit: str = "v", **data: Any) -> Entry:
    return Entry.of(Draft(kind=kind, message=message, visit_id=visit, data=data), seq=seq, at=float(seq))


def assistant_entry(seq: int, *calls: str, text: str = "", visit: str = "v", **data: Any) -> Entry:
    tool_calls = tuple(ToolCall(f"{seq}-{n}", name, "{}") for n, name in enumerate(calls))
    return make_entry(
        seq,
        EntryKind.ASSISTANT,
        Message(role="assistant", content=text, tool_calls=tool_calls),
        visit,
        **data,
    )


def tool_entry(seq: int, call: str, visit: str = "v", **data: Any) -> Entry:
    return make_entry(
        seq, EntryKind.TOOL, Message(role="tool", content="x", tool_call_id=call), visit, **data
    )


def wait_state(cursor: NodeCursor) -> tuple[str, str | None, int]:
    return cursor.awaiting, cursor.question, cursor.user_interaction_count


def text_entry(seq: int, kind: EntryKind, text: str = "words", visit: str = "v", **data: Any) -> Entry:
    return make_entry(seq, kind, Message(role="user", content=text), visit, **data)


def fold_entries(*entries: Entry) -> NodeCursor:
    cursor = NodeCursor(visit_id="v")
    for make_entry in entries:
        cursor.fold(make_entry)
    return cursor


def test_cursor_advances_from_input_to_verdict() -> None:
    cursor = fold_entries(text_entry(1, EntryKind.INPUT))
    assert cursor.awaiting == "model"

    cursor.fold(
        assistant_entry(
            2, "look", "set_output", text="Looking it up.", input_tokens=7, output_tokens=3, cost=0.5
        )
    )
    assert (cursor.awaiting, cursor.unanswered) == ("tools", ["2-0", "2-1"])
    cursor.fold(tool_entry(3, "2-1", outputs={"a": 1}))
    assert (cursor.awaiting, cursor.outputs, cursor.outputs_set) == ("tools", {"a": 1}, True)
    cursor.fold(tool_entry(4, "2-0", tool="look"))
    assert (cursor.awaiting, cursor.iteration, cursor.tool_calls) == ("verdict", 1, 2)
    assert (cursor.input_tokens, cursor.output_tokens, cursor.cost) == (7, 3, 0.5)

    cursor.record_verdict(Verdict.CONTINUE, "", 5.0)
    assert (cursor.awaiting, cursor.verdicts) == ("model", ["CONTINUE"])
    assert [row["type"] for row in cursor.guard] == [
        "llm_call_completed",
        "tool_call_completed",
        "tool_call_completed",
        "step_completed",
    ]


def test_text_turn_awaits_verdict() -> None:
    cursor = fold_entries(
        text_entry(1, EntryKind.INPUT),
        assistant_entry(2, text="Well."),
        text_entry(3, EntryKind.FEEDBACK, "More.", source="judge", verdict="RETRY"),
    )

    assert (cursor.awaiting, cursor.retries, cursor.verdicts, cursor.text) == ("model", 1, ["RETRY"], "Well.")
    assert cursor.guard[-1] == {
        "type": "step_completed",
        "time": 3.0,
        "data": {"index": 1, "verdict": "RETRY", "text": "More."},
    }


def test_question_is_kept_until_the_user_answers() -> None:
    cursor = fold_entries(
        text_entry(1, EntryKind.INPUT),
        assistant_entry(2, "ask_user"),
        tool_entry(3, "2-0", question="Which?"),
    )
    assert (cursor.asked, cursor.awaiting) == (["Which?"], "verdict")
    cursor.awaiting, cursor.question = "user", "Which?"

    cursor.fold(text_entry(4, EntryKind.USER, inbox="i1"))

    assert wait_state(cursor) == ("model", None, 1)
    assert cursor.taken == ["i1"]


def test_entries_of_other_visits_only_advance_seq() -> None:
    cursor = fold_entries(
        text_entry(1, EntryKind.INPUT, visit="w"),
        assistant_entry(2, "look", visit="w"),
        tool_entry(3, "2-0", visit="w", outputs={"a": 1}),
        text_entry(4, EntryKind.USER, visit="w", inbox="i1"),
    )

    assert cursor == NodeCursor(visit_id="v", seq=4, taken=["i1"])


def test_repaired_call_counts_as_answered() -> None:
    cursor = fold_entries(
        text_entry(1, EntryKind.INPUT),
        assistant_entry(2, "look"),
        tool_entry(3, "2-0", tool="look", call_id="2-0", outcome="error", error_type="interrupted", turn=1),
    )

    assert cursor.awaiting == "verdict"
    assert cursor.guard[-1]["data"]["error_type"] == "interrupted"


def test_guard_history_is_bounded_and_counted() -> None:
    cursor = fold_entries(text_entry(1, EntryKind.INPUT))
    for _ in range(GUARD_ROWS + 10):
        cursor.record_model_failure({"error_type": "TransientModelError"}, 1.0)

    assert (len(cursor.guard), cursor.noted) == (GUARD_ROWS, GUARD_ROWS + 10)


@pytest.mark.parametrize("row", [None, [], {}, {"visit_id": 7}, {"visit_id": "v", "awaiting": "tea"}])
def test_invalid_cursor_raises_value_error(row: object) -> None:
    with pytest.raises(ValueError, match="NodeCursor"):
        NodeCursor.model_validate(row)


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    entries: list[Entry] = [text_entry(1, EntryKind.INPUT)]
    for _ in range(draw(st.integers(0, 8))):
        seq = len(entries) + 1
        visit = draw(st.sampled_from(["v", "v", "v", "w"]))
        match draw(st.integers(0, 4)):
            case 0 | 1:
                calls = draw(st.lists(st.sampled_from(["look", "set_output"]), max_size=2))
                entries.append(assistant_entry(seq, *calls, visit=visit, cost=0.25))
                for n, name in enumerate(calls):
                    data = {"outputs": {"a": seq}} if name == "set_output" else {"args_hash": "h"}
                    entries.append(tool_entry(len(entries) + 1, f"{seq}-{n}", visit, tool=name, **data))
            case 2:
                entries.append(text_entry(seq, EntryKind.USER, visit=visit, inbox=f"i{seq}"))
            case 3:
                entries.append(
                    text_entry(seq, EntryKind.FEEDBACK, visit=visit, source="judge", verdict="RETRY")
                )
            case _:
                entries.append(
                    text_entry(seq, EntryKind.FEEDBACK, visit=visit, source="guard", finding=f"k{seq}")
                )
    return entries


@given(entries=histories(), cut=st.integers(0, 30))
def test_snapshot_plus_later_entries_equals_all_entries(entries: list[Entry], cut: int) -> None:
    snapshot = json.loads(json.dumps(fold_entries(*entries[:cut]).model_dump()))

    resumed = NodeCursor.model_validate(snapshot)
    for entry in entries:
        if entry.seq > resumed.seq:
            resumed.fold(entry)

    assert resumed == fold_entries(*entries)
