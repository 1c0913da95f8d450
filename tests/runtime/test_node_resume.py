"""A node that is cancelled or killed at any point, and resumed from disk, gives the same result."""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from queenright.instrumentation.verdict import Verdict
from queenright.runtime.events import AgentEvent, EventType
from queenright.runtime.llm.model import Message, ModelReply, OnText, ToolSpec
from queenright.runtime.nodes.cursor import NodeCursor
from queenright.runtime.nodes.event_loop import NodeResult
from queenright.runtime.nodes.node_guard import GuardFinding
from queenright.runtime.nodes.node_judge import FunctionJudge, Judgement, Turn
from queenright.runtime.storage.conversation import Conversation
from queenright.runtime.storage.files import Disk
from queenright.runtime.tooling.tools import Tool
from tests.runtime.conftest import FakeTime
from tests.runtime.node_parts import Bench, InlineDisk, Place, call_reply, output_reply

T = TypeVar("T")

MEMORY_FOLDER = Path("/dev/shm")

QUESTION = "Which hive?"
USER_ANSWER = "The left one."


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder in memory if possible, because the test makes thousands of synced writes."""
    if not os.access(MEMORY_FOLDER, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY_FOLDER) as folder:
        yield Path(folder)


class PureModel:
    """A model that depends only on its messages."""

    name = "thinking"

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        await asyncio.sleep(0)
        tool_results = [m.content for m in messages if m.role == "tool"]
        remaining_places = [place for place in ("a", "b") if f"looked at {place}" not in tool_results]
        if remaining_places:
            return call_reply(*(("look", json.dumps({"place": place})) for place in remaining_places))
        if '{"part": "p"}' not in tool_results:
            return call_reply(("set_output", '{"part": "p"}'))
        if USER_ANSWER not in [m.content for m in messages]:
            return call_reply(("ask_user", json.dumps({"question": QUESTION})))
        was_retried = any(m.content == "Say more." for m in messages)
        return output_reply(verdict="final" if was_retried else "draft")


def judge(turn: Turn) -> Judgement:
    if turn.outputs["verdict"] == "draft":
        return Judgement(Verdict.RETRY, "Say more.")
    return Judgement(Verdict.ACCEPT)


async def look(arguments: Place) -> str:
    await asyncio.sleep(0)
    if arguments.place == "b":
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return f"looked at {arguments.place}"


class CountingGuard:
    """A guard that warns at the second call of a tool, and records its events."""

    hold_seconds = 0.0

    def __init__(self) -> None:
        self.events: list[tuple[EventType, dict[str, Any]]] = []

    def observe(self, event: AgentEvent) -> GuardFinding | None:
        self.events.append((event.type, dict(event.data)))
        calls = sum(1 for type_, _ in self.events if type_ is EventType.TOOL_CALL_COMPLETED)
        return GuardFinding("doom_loop", "two calls", stop=False) if calls == 2 else None

    def reset(self) -> None:
        self.events.clear()


def make_bench(path: Path, time: FakeTime, disk: Disk, model: Any = None, guard: Any = None) -> Bench:
    return Bench(
        path,
        model or PureModel(),
        time,
        tools=[Tool("look", "Look.", Place, look)],
        disk=disk,
        judge=FunctionJudge(judge),
        guard=guard or CountingGuard(),
        output_keys=("verdict", "part"),
        client_facing=True,
    )


async def run_steps(node_bench: Bench, steps: int | None = None) -> NodeResult | None:
    """Run a visit, answer its question, and return the result; cancel it after ``steps`` loop steps."""
    run = asyncio.create_task(node_bench.run())
    taken_steps = 0
    while not run.done() and (steps is None or taken_steps < steps):
        if node_bench.node.is_waiting_for_user and not list(node_bench.path.glob("inbox/*.json")):
            assert node_bench.node.question == QUESTION
            await node_bench.node.inject(USER_ANSWER)
        await asyncio.sleep(0)
        taken_steps += 1
        assert taken_steps < 2_000
    run.cancel()
    await asyncio.wait([run])
    return None if run.cancelled() else run.result()


def list_entries_without_times(node_bench: Bench) -> list[Any]:
    """Return the entries of a conversation without values that depend on time."""
    rows = []
    for entry in node_bench.conversation.entries:
        data = {key: value for key, value in entry.data.items() if key not in ("ended_at", "inbox")}
        rows.append((entry.kind.value, entry.message, entry.visit_id, data))
    return rows


def dump_cursor(cursor: NodeCursor) -> dict[str, Any]:
    row = cursor.model_dump()
    row["guard"] = [(event["type"], event["data"]) for event in row["guard"]]
    del row["taken"]
    return row


def check_same_end(
    node_bench: Bench, result: NodeResult | None, reference: Bench, expected: NodeResult
) -> bool:
    """Check that a visit matches the reference, and return whether a call was repaired."""
    assert result is not None
    assert (result.outcome, result.outputs) == ("done", expected.outputs)
    cursor = node_bench.cursor
    assert (cursor.user_interaction_count, cursor.question, cursor.accepted) == (1, None, True)
    assert [v for v in cursor.verdicts if v != "CONTINUE"] == ["RETRY", "ACCEPT"]
    assert cursor.warned == ["doom_loop"]
    assert not [t for t in asyncio.all_tasks() if t.get_name().startswith("tool")]
    assert list(node_bench.path.glob("inbox/*.json")) == []
    reopened = Conversation.open(node_bench.path, disk=InlineDisk(), clock=node_bench.time)
    assert list(reopened.entries) == list(node_bench.conversation.entries)
    was_repaired = any(e.data.get("error_type") == "interrupted" for e in node_bench.conversation.entries)
    if not was_repaired:
        assert list_entries_without_times(node_bench) == list_entries_without_times(reference)
        assert dump_cursor(cursor) == dump_cursor(reference.cursor)
        assert result == expected
    contents = {
        e.message.content for e in node_bench.conversation.entries if "interrupted" not in e.message.content
    }
    assert contents == {e.message.content for e in reference.conversation.entries}
    return was_repaired


async def run_reference(path: Path, time: FakeTime, disk: Disk) -> tuple[Bench, NodeResult]:
    node_bench = make_bench(path, time, disk)
    result = await run_steps(node_bench)
    assert result is not None
    assert (result.turns, result.verdicts) == (5, ("CONTINUE", "CONTINUE", "CONTINUE", "RETRY", "ACCEPT"))
    return node_bench, result


async def test_visit_cancelled_after_any_step_resumes_to_same_result(
    memory_folder: Path, fake_time: FakeTime
) -> None:
    """B33: this includes the guard's counters."""
    reference, expected = await run_reference(memory_folder / "reference", fake_time, InlineDisk())
    repaired_count = steps = 0
    while True:
        folder = memory_folder / f"after-{steps}"
        result = await run_steps(make_bench(folder, fake_time, InlineDisk()), steps)
        resumed_bench = make_bench(folder, fake_time, InlineDisk())
        repaired_count += check_same_end(resumed_bench, await run_steps(resumed_bench), reference, expected)
        shutil.rmtree(folder)
        if result is not None:
            break
        steps += 1
    assert steps > 100
    assert repaired_count > 0


@pytest.mark.parametrize("seed", range(6))
async def test_repeatedly_cancelled_visit_resumes_to_same_result(
    memory_folder: Path, fake_time: FakeTime, seed: int
) -> None:
    random = Random(seed)
    reference, expected = await run_reference(memory_folder / "reference", fake_time, InlineDisk())
    folder = memory_folder / "often"
    result = None
    while result is None:
        node_bench = make_bench(folder, fake_time, InlineDisk())
        result = await run_steps(node_bench, random.randrange(10, 80))
    check_same_end(node_bench, result, reference, expected)


class CopyingDisk(InlineDisk):
    """A disk that copies the folder after each operation, in the state in which a kill would leave it."""

    def __init__(self, folder: Path, copies: Path) -> None:
        super().__init__()
        self.folder, self.copies, self.copy_count = folder, copies, 0

    async def run(self, work: Callable[[], T]) -> T:
        result = await super().run(work)
        if self.folder.exists():
            shutil.copytree(self.folder, self.copies / str(self.copy_count))
            self.copy_count += 1
        return result


async def test_kill_between_any_two_writes_gives_the_same_result(
    memory_folder: Path, fake_time: FakeTime
) -> None:
    reference, expected = await run_reference(memory_folder / "reference", fake_time, InlineDisk())
    disk = CopyingDisk(memory_folder / "first", memory_folder / "copies")
    await run_steps(make_bench(memory_folder / "first", fake_time, disk))
    assert disk.copy_count > 20
    for number in range(disk.copy_count):
        resumed_bench = make_bench(memory_folder / "copies" / str(number), fake_time, InlineDisk())
        check_same_end(resumed_bench, await run_steps(resumed_bench), reference, expected)


async def test_guard_history_is_replayed_identically(memory_folder: Path, fake_time: FakeTime) -> None:
    live_guard, replayed_guard = CountingGuard(), CountingGuard()
    await run_steps(make_bench(memory_folder, fake_time, InlineDisk(), guard=live_guard))
    # Undo the end of the visit, so that its last verdict is not given yet.
    row = json.loads((memory_folder / "cursor.json").read_text())
    row |= {"awaiting": "model", "result": None, "max_turns": 5}
    (memory_folder / "cursor.json").write_text(json.dumps(row))

    await run_steps(make_bench(memory_folder, fake_time, InlineDisk(), guard=replayed_guard))

    assert replayed_guard.events[: len(live_guard.events)] == live_guard.events


@pytest.mark.parametrize(
    "content", [b"", b'{"visit_id": ', b"[]", b"\xff\xfe", b'{"visit_id": "x1:n:1", "seq": 999}']
)
async def test_invalid_cursor_is_rebuilt_from_conversation(
    memory_folder: Path, fake_time: FakeTime, content: bytes
) -> None:
    node_bench = make_bench(memory_folder, fake_time, InlineDisk())
    await run_steps(node_bench, 120)
    (memory_folder / "cursor.json").write_bytes(content)

    resumed_bench = make_bench(memory_folder, fake_time, InlineDisk())
    result = await run_steps(resumed_bench)

    assert result is not None
    assert (result.outcome, result.outputs) == ("done", {"part": "p", "verdict": "final"})
    assert resumed_bench.cursor.user_interaction_count == 1


async def test_folder_in_place_of_cursor_is_a_disk_error(memory_folder: Path, fake_time: FakeTime) -> None:
    (memory_folder / "cursor.json").mkdir()

    with pytest.raises(OSError, match=r"cursor\.json"):
        await make_bench(memory_folder, fake_time, InlineDisk()).run()
    (memory_folder / "cursor.json").rmdir()

    result = await run_steps(make_bench(memory_folder, fake_time, InlineDisk()))
    assert result is not None
    assert result.outcome == "done"
