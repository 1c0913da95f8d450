"""
Kill an agent repeatedly: ``python -m tests.runtime.killed_agent FOLDER SEED ROUNDS``.

The program imports everything once. Each incarnation of the agent is a fork that kills itself with SIGKILL at
a random step of its event loop or at a random write to the disk, until one completes. Then its files are
compared with those of an agent that was never killed, and the first difference is printed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from queenright.health.settings import HealthSettings
from queenright.instrumentation.verdict import Verdict
from queenright.runtime.agent_runtime import AgentRuntime
from queenright.runtime.bus import EventBus
from queenright.runtime.graphs.graph import EdgeSpec, EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import Message, ModelReply, OnText, ToolCall, ToolSpec, TransientModelError
from queenright.runtime.nodes.cursor import NodeCursor
from queenright.runtime.nodes.node_judge import FunctionJudge, Judgement, Turn
from queenright.runtime.storage.conversation import Conversation, EntryKind
from queenright.runtime.storage.files import Disk, read_json
from queenright.runtime.storage.session_state import SessionStatus
from queenright.runtime.storage.session_store import Session, SessionStore
from queenright.runtime.tooling.tools import Tool
from queenright.server.agents.node_guards import make_health_guard

PLACE_COUNT = 6
NEVER = 10**9
THREADS_BY_NODE = {"plan": "plan", "look": "look", "sum": "plan"}


class Place(BaseModel):
    n: int


class PureModel:
    """A model that is a function of its messages, so that a resumed run takes the same path."""

    name = "bee"

    def __init__(self) -> None:
        self._failed_at: set[int] = set()

    def _should_fail(self, message_count: int) -> bool:
        """Return whether this request fails. Each fails once, as if the provider was overloaded."""
        if message_count in self._failed_at:
            return False
        self._failed_at.add(message_count)
        return True

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        await asyncio.sleep(0)
        contents = {m.content for m in messages}
        call_count = sum(len(m.tool_calls) for m in messages)

        def reply_with_calls(*calls: tuple[str, dict[str, Any]]) -> ModelReply:
            return ModelReply(
                text="so",
                tool_calls=tuple(
                    ToolCall(f"c{call_count + i}", name, json.dumps(arguments))
                    for i, (name, arguments) in enumerate(calls)
                ),
                input_tokens=10,
                output_tokens=2,
            )

        match messages[0].content:
            case "Plan.":
                if "bees" in contents:
                    return reply_with_calls(("set_output", {"topic": "bees"}))
                return reply_with_calls(("ask_user", {"question": "Which topic?"}))
            case "Look.":
                # Exceed the context limit, so that early observations are in a summary.
                missing = [
                    n for n in range(PLACE_COUNT) if not any(f"saw {n}" in words for words in contents)
                ]
                if 0 not in missing and 4 in missing and self._should_fail(len(messages)):
                    raise TransientModelError("the hive is busy")
                if missing:
                    return reply_with_calls(*(("look", {"n": n}) for n in missing[:2]))
                is_retry = any("Again." in words for words in contents)
                return reply_with_calls(("set_output", {"seen": str(PLACE_COUNT) if is_retry else "?"}))
            case "Note.":
                return reply_with_calls(("set_output", {"noted": "yes"}))
            case _:
                has_first_output = any("first" in call.arguments for m in messages for call in m.tool_calls)
                return reply_with_calls(
                    ("set_output", {"second": "2"} if has_first_output else {"first": "1"})
                )


def make_graph() -> GraphSpec:
    def chat_node(name: str, prompt: str, keys: str, **options: Any) -> NodeSpec:
        return NodeSpec(id=name, system_prompt=prompt, output_keys=tuple(keys.split()), **options)

    return GraphSpec(
        id="hive",
        nodes=(
            chat_node("plan", "Plan.", "topic", client_facing=True),
            chat_node("look", "Look.", "seen", tools=("look",), max_messages=8, conversation_judge="strict"),
            NodeSpec(id="count", node_type="function", function="count", output_keys=("counted",)),
            chat_node("sum", "Sum.", "first second", input_keys=("seen", "counted")),
        ),
        edges=tuple(
            EdgeSpec(source=s, target=t)
            for s, t in (("plan", "look"), ("plan", "count"), ("look", "sum"), ("count", "sum"))
        ),
        entry_points=(EntryPointSpec(id="start", node_id="plan"),),
    )


def make_second_graph() -> GraphSpec:
    """Another graph in the same session."""
    node = NodeSpec(id="note", system_prompt="Note.", output_keys=("noted",))
    entry = EntryPointSpec(id="start", node_id="note", isolation_level="shared")
    return GraphSpec(id="side", nodes=(node,), entry_points=(entry,))


def judge_strictly(turn: Turn) -> Judgement:
    if turn.outputs.get("seen") == "?":
        return Judgement(Verdict.RETRY, "Again.")
    return Judgement(Verdict.ACCEPT, "")


async def run_incarnation(folder: Path, kill: Callable[[AgentRuntime], None]) -> None:
    """Run one incarnation, which starts or resumes the runs and answers the question of the first."""
    effects = folder / "effects"

    async def look(place: Place) -> str:
        with effects.open("a") as file:
            file.write(f"{place.n}\n")
        await asyncio.sleep(0)
        return f"saw {place.n}"

    runtime = AgentRuntime(
        bus=EventBus(),
        storage=folder,
        disk=Disk(),
        sleep=lambda seconds: asyncio.sleep(seconds / 1000),
        guards=make_health_guard(HealthSettings()),
    )
    runtime.add_graph(
        make_graph(),
        model=PureModel(),
        tools=[Tool("look", "Look.", Place, look)],
        functions={"count": lambda: 3},
        judges={"strict": FunctionJudge(judge_strictly)},
        agent_id="bee",
        primary=True,
    )
    runtime.add_graph(make_second_graph(), model=PureModel(), agent_id="drone")
    kill(runtime)
    await runtime.start()
    store = runtime.session_store("hive")
    sessions = store.list_sessions()
    session = sessions[0].session_id if sessions else store.create(graph_id="hive", entry_point="start").id
    runs = [run for name in ("hive", "side") if (run := await start_or_resume(runtime, session, name))]
    answered_turns: set[int] = set()
    while any(runtime.get_execution_result(run) is None for run in runs):
        for _, node_id, node in runtime.get_stream("start").nodes():
            if node.is_waiting_for_user and node.cursor.iteration not in answered_turns:
                answered_turns.add(node.cursor.iteration)
                await runtime.inject_input(node_id, "bees")
        await asyncio.sleep(0.0005)
    await runtime.stop()
    for run in runs:
        result = runtime.get_execution_result(run)
        assert result is not None
        assert result.succeeded, f"the run ended {result}"


async def start_or_resume(runtime: AgentRuntime, session: str, graph_id: str) -> str | None:
    """Start or resume the run of a graph, and return its id, or None if it has ended."""
    result = runtime.session_store("hive").read_state(session).executions.get(f"{graph_id}::start")
    if result is None:
        return await runtime.trigger("start", {"message": "go"}, graph_id=graph_id, session_id=session)
    if result.status is SessionStatus.COMPLETED:
        return None
    return await runtime.resume(session, graph_id)


def run_until_killed(folder: Path, step: int, write: int) -> None:
    """
    Run an incarnation that is killed at a step of the event loop, where it first dumps its memory, or at a
    write to the disk.
    """
    runtimes: list[AgentRuntime] = []
    loop = asyncio.new_event_loop()
    steps = writes = 0
    original = loop._run_once  # type: ignore[attr-defined]

    def run_once() -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            (folder / "at_kill.json").write_text(json.dumps(dump_memory(runtimes[0]) if runtimes else []))
            os.kill(os.getpid(), signal.SIGKILL)
        original()

    def count_writes(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal writes
            writes += 1
            if writes == write:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    loop._run_once = run_once  # type: ignore[attr-defined]
    for name in ("replace", "fsync", "unlink", "write"):
        setattr(os, name, count_writes(getattr(os, name)))
    loop.run_until_complete(run_incarnation(folder, runtimes.append))
    (folder / "counts.json").write_text(json.dumps([steps, writes]))


def dump_memory(runtime: AgentRuntime) -> list[dict[str, Any]]:
    """Return the in-memory state of the running nodes."""
    rows = []
    for _, node_id, node in runtime.get_stream("start").nodes():
        cursor = node.cursor
        if cursor is not None:
            entries = [e.to_dict() for e in node._visit.conversation.entries]
            is_waiting = node.is_waiting_for_user
            rows.append(
                {"node": node_id, "cursor": cursor.model_dump(), "entries": entries, "waits": is_waiting}
            )
    return rows


def fork(work: Callable[..., None], *args: Any) -> bool:
    """Run ``work`` in a child process, and return whether it was killed. Any other failure is an error."""
    child = os.fork()
    if child == 0:
        try:
            work(*args)
        except BaseException:
            import traceback

            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0, "an incarnation ended with an error"
    return False


def find_only_session(folder: Path) -> tuple[SessionStore, Session] | None:
    store = SessionStore(folder, clock=lambda: 0.0)
    sessions = store.list_sessions()
    assert len(sessions) <= 1, f"{len(sessions)} sessions"
    return (store, store.open(sessions[0].session_id)) if sessions else None


def open_conversation(session: Session, name: str) -> Conversation:
    conversation = Conversation.open(session.conversations / name, disk=Disk(), clock=lambda: 0.0)
    assert not conversation.skipped_files, f"unreadable: {conversation.skipped_files}"
    return conversation


def drop_summarized_entries(
    entries: list[dict[str, Any]], conversation: Conversation
) -> list[dict[str, Any]]:
    """Return the entries without those that a summary, written during the kill, has replaced."""
    first = conversation.entries[0] if conversation.entries else None
    if first is None or first.kind is not EntryKind.SUMMARY or first.to_dict() in entries:
        return entries
    return [entry for entry in entries if entry["seq"] > first.seq]


def check_kill(folder: Path) -> None:
    """Check that the disk has everything that was written before the kill."""
    dump = folder / "at_kill.json"
    if not dump.exists():
        return
    stored = find_only_session(folder)
    for row in json.loads(dump.read_text()):
        assert stored is not None
        node_id, old_cursor = row["node"], NodeCursor.model_validate(row["cursor"])
        conversation = open_conversation(stored[1], THREADS_BY_NODE[node_id])
        entries = drop_summarized_entries(row["entries"], conversation)
        on_disk = [e.to_dict() for e in conversation.entries if e.seq >= entries[0]["seq"]] if entries else []
        assert on_disk[: len(entries)] == entries, f"{node_id}: the conversation differs"
        path = stored[1].conversations / node_id / "cursor.json"
        state = read_json(path) if path.exists() else {"visit_id": old_cursor.visit_id}
        new_cursor = NodeCursor.model_validate(state)
        if new_cursor.visit_id != old_cursor.visit_id:
            new_cursor = NodeCursor(visit_id=old_cursor.visit_id)
        for entry in conversation.entries:
            if entry.seq > new_cursor.seq:
                new_cursor.fold(entry)
        assert new_cursor.iteration >= old_cursor.iteration, f"{node_id}: turns were lost"
        assert new_cursor.user_interaction_count >= old_cursor.user_interaction_count, (
            f"{node_id}: user input was lost"
        )
        # At most one write, of a verdict or a failed call, is in progress during the kill. It is repeated
        # after the resume.
        unwritten = max(0, len(old_cursor.verdicts) - len(new_cursor.verdicts))
        assert unwritten <= 1, f"{node_id}: verdicts were lost"
        assert new_cursor.retries >= old_cursor.retries - unwritten, f"{node_id}: retries were lost"
        assert new_cursor.noted >= old_cursor.noted - 1, f"{node_id}: the guard's counters were lost"
        # The disk may also have the answer that was in progress, which may have set an output.
        assert set(old_cursor.outputs) <= set(new_cursor.outputs), f"{node_id}: outputs were lost"
        if row["waits"] and new_cursor.user_interaction_count == old_cursor.user_interaction_count:
            assert new_cursor.question == old_cursor.question, f"{node_id}: the question was lost"
    dump.unlink()


def check_end(folder: Path, kills: int) -> dict[str, Any]:
    """Check the invariants of a completed run, and return its outcome."""
    stored = find_only_session(folder)
    assert stored is not None
    store, session = stored
    state = store.read_state(session.id)
    run, make_second_graph = state.executions["hive::start"], state.executions["side::start"]
    assert (run.status, make_second_graph.status) == (SessionStatus.COMPLETED, SessionStatus.COMPLETED)
    assert not run.pending
    result: dict[str, Any] = {"memory": state.memory, "outputs": run.outputs, "visits": run.visits}
    side_cursor = NodeCursor.model_validate(
        read_json(session.root / "graphs" / "side" / "conversations" / "note" / "cursor.json")
    )
    assert side_cursor.accepted
    assert side_cursor.verdicts.count("ACCEPT") == 1
    for name in ("plan", "look", "sum"):
        cursor = NodeCursor.model_validate(read_json(session.conversations / name / "cursor.json"))
        # The last node continues the conversation of the first node.
        thread = open_conversation(session, THREADS_BY_NODE[name])
        entries = [e for e in thread.entries if e.visit_id == cursor.visit_id]
        call_ids = [c.id for e in entries for c in e.message.tool_calls]
        answered_ids = [e.message.tool_call_id for e in entries if e.kind is EntryKind.TOOL]
        assert sorted(call_ids) == sorted(answered_ids), f"{name}: calls and answers do not match"
        turns = sum(e.kind is EntryKind.ASSISTANT for e in entries)
        if name == "look":
            assert turns < cursor.iteration, "the conversation was never shortened"
            assert cursor.verdicts.count("RETRY") == cursor.retries == 1, f"look: {cursor.verdicts}"
        else:
            assert cursor.iteration == turns, f"{name}: {cursor.iteration} turns counted, {turns} found"
        assert cursor.verdicts.count("ACCEPT") == 1
        assert cursor.accepted
        users = [e.message.content for e in entries if e.kind is EntryKind.USER]
        assert len(users) == cursor.user_interaction_count
        result[name] = {
            "outputs": cursor.outputs,
            "users": sorted(set(users)),
        }
        # After each kill, the question may be repeated or answered once more.
        assert len(users) <= 1 + kills if name == "plan" else not users
    effects = sorted({int(line) for line in (folder / "effects").read_text().split()})
    assert effects == list(range(PLACE_COUNT))
    times = len((folder / "effects").read_text().split())
    assert times <= PLACE_COUNT + 2 * kills, f"{times} calls after {kills} kills"
    return result


def main(folder: Path, seed: int, rounds: int) -> int:
    """Compare ``rounds`` killed runs with a run that was never killed."""
    random_ = random.Random(seed)
    reference_folder = folder / "calm"
    reference_folder.mkdir(parents=True)
    assert not fork(run_until_killed, reference_folder, NEVER, NEVER)
    expected_outcome = check_end(reference_folder, 0)
    steps, writes = json.loads((reference_folder / "counts.json").read_text())
    total_kills = 0
    for number in range(rounds):
        round_folder = folder / f"round{number}"
        round_folder.mkdir()
        kills = 0
        script: list[tuple[int, int]] = []
        try:
            while kills < 12:
                # Prefer early kills, because an incarnation that resumes a run has less work left.
                share = random_.random() ** 2
                by_step = random_.random() < 0.6
                kill_point = (1 + int(share * steps), NEVER) if by_step else (NEVER, 1 + int(share * writes))
                script.append(kill_point)
                if not fork(run_until_killed, round_folder, *kill_point):
                    break
                kills += 1
                check_kill(round_folder)
            else:
                script.append((NEVER, NEVER))
                assert not fork(run_until_killed, round_folder, NEVER, NEVER)
            outcome = check_end(round_folder, kills)
            assert outcome == expected_outcome, f"{outcome} is not {expected_outcome}"
        except AssertionError as error:
            print(f"seed {seed}, round {number}, kills at {script}: {error}")
            return 1
        total_kills += kills
    print(json.dumps({"rounds": rounds, "kills": total_kills, "steps": steps, "writes": writes}))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
