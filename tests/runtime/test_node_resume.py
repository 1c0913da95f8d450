"""A node that is cancelled or killed at any point and resumed from disk gives the same result."""

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

MEMORY = Path("/dev/shm")

QUESTION = "Which hive?"
WORDS = "The left one."


@pytest.fixture
def memory_folder(tmp_path: Path) -> Iterator[Path]:
    """Return a folder in memory if possible, because the test makes thousands of synced writes."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


class PureModel:
    """A model that depends only on its messages."""

    name = "thinking"

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        await asyncio.sleep(0)
        tool_results = [m.content for m in messages if m.role == "tool"]
        unseen = [place for place in ("a", "b") if f"looked at {place}" not in tool_results]
        if unseen:
            return call_reply(*(("look", json.dumps({"place": place})) for place in unseen))
        if '{"part": "p"}' not in tool_results:
            return call_reply(("set_output", '{"part": "p"}'))
        if WORDS not in [m.content for m in messages]:
            return call_reply(("ask_user", json.dumps({"question": QUESTION})))
        good = any(m.content == "Say more." for m in messages)
        return output_reply(verdict="final" if good else "draft")


def judge(turn: Turn) -> Judgement:
    if turn.outputs["verdict"] == "draft":
        return Judgement(Verdict.RETRY, "Say more.")
    return Judgement(Verdict.ACCEPT)


async def look(given: Place) -> str:
    await asyncio.sleep(0)
    if given.place == "b":
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return f"looked at {given.place}"


class CountingGuard:
    """A guard that warns at the second call of a tool, and records its events."""

    hold_seconds = 0.0

    def __init__(self) -> None:
        self.seen: list[tuple[EventType, dict[str, Any]]] = []

    def observe(self, event: AgentEvent) -> GuardFinding | None:
        self.seen.append((event.type, dict(event.data)))
        calls = sum(1 for type_, _ in self.seen if type_ is EventType.TOOL_CALL_COMPLETED)
        return GuardFinding("doom_loop", "two calls", stop=False) if calls == 2 else None

    def reset(self) -> None:
        self.seen.clear()


def bench(path: Path, time: FakeTime, disk: Disk, model: Any = None, guard: Any = None) -> Bench:
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
    """Run a visit, answering once as its user; cancel it after ``steps`` steps of the loop."""
    run = asyncio.create_task(node_bench.run())
    taken = 0
    while not run.done() and (steps is None or taken < steps):
        if node_bench.node.is_waiting_for_user and not list(node_bench.path.glob("inbox/*.json")):
            assert node_bench.node.question == QUESTION
            await node_bench.node.inject(WORDS)
        await asyncio.sleep(0)
        taken += 1
        assert taken < 2_000
    run.cancel()
    await asyncio.wait([run])
    return None if run.cancelled() else run.result()


def conversation_without_times(node_bench: Bench) -> list[Any]:
    """Return the conversation without times."""
    timeless = []
    for entry in node_bench.conversation.entries:
        data = {key: value for key, value in entry.data.items() if key not in ("ended_at", "inbox")}
        timeless.append((entry.kind.value, entry.message, entry.visit_id, data))
    return timeless


def cursor_state(cursor: NodeCursor) -> dict[str, Any]:
    row = cursor.model_dump()
    row["guard"] = [(each["type"], each["data"]) for each in row["guard"]]
    del row["taken"]
    return row


def check_same_end(
    node_bench: Bench, result: NodeResult | None, reference: Bench, wanted: NodeResult
) -> bool:
    """Check that a visit matches the reference; return whether a call was repaired."""
    assert result is not None
    assert (result.outcome, result.outputs) == ("done", wanted.outputs)
    cursor = node_bench.cursor
    assert (cursor.user_interaction_count, cursor.question, cursor.accepted) == (1, None, True)
    assert [v for v in cursor.verdicts if v != "CONTINUE"] == ["RETRY", "ACCEPT"]
    assert cursor.warned == ["doom_loop"]
    assert not [t for t in asyncio.all_tasks() if t.get_name().startswith("tool")]
    assert list(node_bench.path.glob("inbox/*.json")) == []
    fresh = Conversation.open(node_bench.path, disk=InlineDisk(), clock=node_bench.time)
    assert list(fresh.entries) == list(node_bench.conversation.entries)
    repaired = any(e.data.get("error_type") == "interrupted" for e in node_bench.conversation.entries)
    if not repaired:
        assert conversation_without_times(node_bench) == conversation_without_times(reference)
        assert cursor_state(cursor) == cursor_state(reference.cursor)
        assert result == wanted
    contents = {
        e.message.content for e in node_bench.conversation.entries if "interrupted" not in e.message.content
    }
    assert contents == {e.message.content for e in reference.conversation.entries}
    return repaired


async def reference_run(path: Path, time: FakeTime, disk: Disk) -> tuple[Bench, NodeResult]:
    node_bench = bench(path, time, disk)
    result = await run_steps(node_bench)
    assert result is not None
    assert (result.turns, result.verdicts) == (5, ("CONTINUE", "CONTINUE", "CONTINUE", "RETRY", "ACCEPT"))
    return node_bench, result


async def test_visit_cancelled_after_any_step_resumes_to_same_result(
    memory_folder: Path, fake_time: FakeTime
) -> None:
    """Includes B33: the guard's counters."""
    reference, wanted = await reference_run(memory_folder / "reference", fake_time, InlineDisk())
    repaired = steps = 0
    while True:
        folder = memory_folder / f"after-{steps}"
        finished = await run_steps(bench(folder, fake_time, InlineDisk()), steps)
        resumed = bench(folder, fake_time, InlineDisk())
        repaired += check_same_end(resumed, await run_steps(resumed), reference, wanted)
        shutil.rmtree(folder)
        if finished is not None:
            break
        steps += 1
    assert steps > 100
    assert repaired > 0


@pytest.mark.parametrize("seed", range(6))
async def test_repeatedly_cancelled_visit_resumes_to_same_result(
    memory_folder: Path, fake_time: FakeTime, seed: int
) -> None:
    random = Random(seed)
    reference, wanted = await reference_run(memory_folder / "reference", fake_time, InlineDisk())
    folder = memory_folder / "often"
    result = None
    while result is None:
        node_bench = bench(folder, fake_time, InlineDisk())
        result = await run_steps(node_bench, random.randrange(10, 80))
    check_same_end(node_bench, result, reference, wanted)


class CopyingDisk(InlineDisk):
    """A disk that copies the folder after each operation, as a kill at that moment would leave it."""

    def __init__(self, folder: Path, copies: Path) -> None:
        super().__init__()
        self.folder, self.copies, self.kept = folder, copies, 0

    async def run(self, work: Callable[[], T]) -> T:
        result = await super().run(work)
        if self.folder.exists():
            shutil.copytree(self.folder, self.copies / str(self.kept))
            self.kept += 1
        return result


async def test_kill_between_any_two_writes_gives_the_same_result(
    memory_folder: Path, fake_time: FakeTime
) -> None:
    reference, wanted = await reference_run(memory_folder / "reference", fake_time, InlineDisk())
    disk = CopyingDisk(memory_folder / "first", memory_folder / "copies")
    await run_steps(bench(memory_folder / "first", fake_time, disk))
    assert disk.kept > 20
    for number in range(disk.kept):
        resumed = bench(memory_folder / "copies" / str(number), fake_time, InlineDisk())
        check_same_end(resumed, await run_steps(resumed), reference, wanted)


async def test_guard_history_is_replayed_identically(memory_folder: Path, fake_time: FakeTime) -> None:
    live, replayed = CountingGuard(), CountingGuard()
    await run_steps(bench(memory_folder, fake_time, InlineDisk(), guard=live))
    # Undo the end, so that the visit is before its last verdict.
    row = json.loads((memory_folder / "cursor.json").read_text())
    row |= {"awaiting": "model", "result": None, "max_turns": 5}
    (memory_folder / "cursor.json").write_text(json.dumps(row))

    await run_steps(bench(memory_folder, fake_time, InlineDisk(), guard=replayed))

    assert replayed.seen[: len(live.seen)] == live.seen


@pytest.mark.parametrize(
    "content", [b"", b'{"visit_id": ', b"[]", b"\xff\xfe", b'{"visit_id": "x1:n:1", "seq": 999}']
)
async def test_invalid_cursor_is_rebuilt_from_conversation(
    memory_folder: Path, fake_time: FakeTime, content: bytes
) -> None:
    node_bench = bench(memory_folder, fake_time, InlineDisk())
    await run_steps(node_bench, 120)
    (memory_folder / "cursor.json").write_bytes(content)

    resumed = bench(memory_folder, fake_time, InlineDisk())
    result = await run_steps(resumed)

    assert result is not None
    assert (result.outcome, result.outputs) == ("done", {"part": "p", "verdict": "final"})
    assert resumed.cursor.user_interaction_count == 1


async def test_folder_in_place_of_cursor_is_a_disk_error(memory_folder: Path, fake_time: FakeTime) -> None:
    (memory_folder / "cursor.json").mkdir()

    with pytest.raises(OSError, match=r"cursor\.json"):
        await bench(memory_folder, fake_time, InlineDisk()).run()
    (memory_folder / "cursor.json").rmdir()

    result = await run_steps(bench(memory_folder, fake_time, InlineDisk()))
    assert result is not None
    assert result.outcome == "done"
