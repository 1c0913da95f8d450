"""
An agent that is killed repeatedly: ``python -m tests.runtime.killed_agent FOLDER SEED ROUNDS``.

Everything is imported once. Each incarnation of the agent is a fork that kills itself with SIGKILL at a
random step of its event loop or at a random write to the disk, until one completes. Then the disk is compared
with that of an agent that was never killed. Prints the differences, if any.
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

PLACES = 6
NEVER = 10**9
THREADS = {"plan": "plan", "look": "look", "sum": "plan"}


class Place(BaseModel):
    n: int


class PureModel:
    """A model that is a function of its messages, so that a resumed run takes the same path."""

    name = "bee"

    def __init__(self) -> None:
        self._failed_at: set[int] = set()

    def _busy(self, at: int) -> bool:
        """Fail once per incarnation and place, like a provider that is briefly overloaded."""
        if at in self._failed_at:
            return False
        self._failed_at.add(at)
        return True

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        await asyncio.sleep(0)
        contents = {m.content for m in messages}
        call_count = sum(len(m.tool_calls) for m in messages)

        def calling(*calls: tuple[str, dict[str, Any]]) -> ModelReply:
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
                    return calling(("set_output", {"topic": "bees"}))
                return calling(("ask_user", {"question": "Which topic?"}))
            case "Look.":
                # Exceed the context limit, so that early observations are in a summary.
                missing = [n for n in range(PLACES) if not any(f"saw {n}" in words for words in contents)]
                if 0 not in missing and 4 in missing and self._busy(len(messages)):
                    raise TransientModelError("the hive is busy")
                if missing:
                    return calling(*(("look", {"n": n}) for n in missing[:2]))
                is_retry = any("Again." in words for words in contents)
                return calling(("set_output", {"seen": str(PLACES) if is_retry else "?"}))
            case "Note.":
                return calling(("set_output", {"noted": "yes"}))
            case _:
                first = any("first" in call.arguments for m in messages for call in m.tool_calls)
                return calling(("set_output", {"second": "2"} if first else {"first": "1"}))


def graph() -> GraphSpec:
    def chat_node(name: str, prompt: str, keys: str, **more: Any) -> NodeSpec:
        return NodeSpec(id=name, system_prompt=prompt, output_keys=tuple(keys.split()), **more)

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


def second_graph() -> GraphSpec:
    """Another graph in the same session."""
    node = NodeSpec(id="note", system_prompt="Note.", output_keys=("noted",))
    entry = EntryPointSpec(id="start", node_id="note", isolation_level="shared")
    return GraphSpec(id="side", nodes=(node,), entry_points=(entry,))


def strict(turn: Turn) -> Judgement:
    if turn.outputs.get("seen") == "?":
        return Judgement(Verdict.RETRY, "Again.")
    return Judgement(Verdict.ACCEPT, "")


async def run_incarnation(folder: Path, kill: Callable[[AgentRuntime], None]) -> None:
    """Run one incarnation: start or resume the run, and answer its question."""
    effects = folder / "effects"

    async def look(given: Place) -> str:
        with effects.open("a") as file:
            file.write(f"{given.n}\n")
        await asyncio.sleep(0)
        return f"saw {given.n}"

    runtime = AgentRuntime(
        bus=EventBus(),
        storage=folder,
        disk=Disk(),
        sleep=lambda seconds: asyncio.sleep(seconds / 1000),
        guards=make_health_guard(HealthSettings()),
    )
    runtime.add_graph(
        graph(),
        model=PureModel(),
        tools=[Tool("look", "Look.", Place, look)],
        functions={"count": lambda: 3},
        judges={"strict": FunctionJudge(strict)},
        agent_id="bee",
        primary=True,
    )
    runtime.add_graph(second_graph(), model=PureModel(), agent_id="drone")
    kill(runtime)
    await runtime.start()
    store = runtime.session_store("hive")
    known = store.list_sessions()
    session = known[0].session_id if known else store.create(graph_id="hive", entry_point="start").id
    runs = [run for name in ("hive", "side") if (run := await start_or_resume(runtime, session, name))]
    answered: set[int] = set()
    while any(runtime.get_execution_result(run) is None for run in runs):
        for _, node_id, node in runtime.get_stream("start").nodes():
            if node.is_waiting_for_user and node.cursor.iteration not in answered:
                answered.add(node.cursor.iteration)
                await runtime.inject_input(node_id, "bees")
        await asyncio.sleep(0.0005)
    await runtime.stop()
    for run in runs:
        result = runtime.get_execution_result(run)
        assert result is not None
        assert result.succeeded, f"the run ended {result}"


async def start_or_resume(runtime: AgentRuntime, session: str, graph_id: str) -> str | None:
    """Start or resume a graph's run; return None if it has ended."""
    result = runtime.session_store("hive").read_state(session).executions.get(f"{graph_id}::start")
    if result is None:
        return await runtime.trigger("start", {"message": "go"}, graph_id=graph_id, session_id=session)
    if result.status is SessionStatus.COMPLETED:
        return None
    return await runtime.resume(session, graph_id)


def run_until_killed(folder: Path, step: int, write: int) -> None:
    """
    Run an incarnation that is killed at a given loop step, after dumping its memory, or at a given disk
    write.
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
    found = []
    for _, node_id, node in runtime.get_stream("start").nodes():
        cursor = node.cursor
        if cursor is not None:
            entries = [e.to_dict() for e in node._visit.conversation.entries]
            waits = node.is_waiting_for_user
            found.append({"node": node_id, "cursor": cursor.model_dump(), "entries": entries, "waits": waits})
    return found


def fork(work: Callable[..., None], *args: Any) -> bool:
    """Run ``work`` in a child process; return whether it was killed. Any other failure is an error."""
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


def only_session(folder: Path) -> tuple[SessionStore, Session] | None:
    store = SessionStore(folder, clock=lambda: 0.0)
    known = store.list_sessions()
    assert len(known) <= 1, f"{len(known)} sessions"
    return (store, store.open(known[0].session_id)) if known else None


def open_conversation(session: Session, name: str) -> Conversation:
    opened = Conversation.open(session.conversations / name, disk=Disk(), clock=lambda: 0.0)
    assert not opened.skipped_files, f"unreadable: {opened.skipped_files}"
    return opened


def starts_with_entries(entries: list[dict[str, Any]], opened: Conversation) -> list[dict[str, Any]]:
    """Drop what a summary, written during the kill, has replaced from the state in memory."""
    first = opened.entries[0] if opened.entries else None
    if first is None or first.kind is not EntryKind.SUMMARY or first.to_dict() in entries:
        return entries
    return [entry for entry in entries if entry["seq"] > first.seq]


def check_kill(folder: Path) -> None:
    """Check that the disk holds everything written before the kill."""
    dump = folder / "at_kill.json"
    if not dump.exists():
        return
    found = only_session(folder)
    for row in json.loads(dump.read_text()):
        assert found is not None
        node_id, was = row["node"], NodeCursor.model_validate(row["cursor"])
        opened = open_conversation(found[1], THREADS[node_id])
        result = starts_with_entries(row["entries"], opened)
        on_disk = [e.to_dict() for e in opened.entries if e.seq >= result[0]["seq"]] if result else []
        assert on_disk[: len(result)] == result, f"{node_id}: the conversation differs"
        path = found[1].conversations / node_id / "cursor.json"
        state = read_json(path) if path.exists() else {"visit_id": was.visit_id}
        now = NodeCursor.model_validate(state)
        if now.visit_id != was.visit_id:
            now = NodeCursor(visit_id=was.visit_id)
        for entry in opened.entries:
            if entry.seq > now.seq:
                now.fold(entry)
        assert now.iteration >= was.iteration, f"{node_id}: turns were lost"
        assert now.user_interaction_count >= was.user_interaction_count, f"{node_id}: the user was forgotten"
        # A write in progress during the kill (a verdict, a failed call) is repeated after the resume; that is
        # at most one.
        unwritten = max(0, len(was.verdicts) - len(now.verdicts))
        assert unwritten <= 1, f"{node_id}: verdicts were lost"
        assert now.retries >= was.retries - unwritten, f"{node_id}: retries were lost"
        assert now.noted >= was.noted - 1, f"{node_id}: the guard's counters were lost"
        # The disk may be ahead by an answer in progress, which may have set an output.
        assert set(was.outputs) <= set(now.outputs), f"{node_id}: outputs were lost"
        if row["waits"] and now.user_interaction_count == was.user_interaction_count:
            assert now.question == was.question, f"{node_id}: the question was lost"
    dump.unlink()


def check_end(folder: Path, kills: int) -> dict[str, Any]:
    """Check the invariants, and return the run's outcome."""
    found = only_session(folder)
    assert found is not None
    store, session = found
    state = store.read_state(session.id)
    run, second_graph = state.executions["hive::start"], state.executions["side::start"]
    assert (run.status, second_graph.status) == (SessionStatus.COMPLETED, SessionStatus.COMPLETED)
    assert not run.pending
    result: dict[str, Any] = {"memory": state.memory, "outputs": run.outputs, "visits": run.visits}
    side = NodeCursor.model_validate(
        read_json(session.root / "graphs" / "side" / "conversations" / "note" / "cursor.json")
    )
    assert side.accepted
    assert side.verdicts.count("ACCEPT") == 1
    for name in ("plan", "look", "sum"):
        cursor = NodeCursor.model_validate(read_json(session.conversations / name / "cursor.json"))
        # The last node runs again, in the thread that the first one started.
        thread = open_conversation(session, THREADS[name])
        entries = [e for e in thread.entries if e.visit_id == cursor.visit_id]
        call_ids = [c.id for e in entries for c in e.message.tool_calls]
        answered = [e.message.tool_call_id for e in entries if e.kind is EntryKind.TOOL]
        assert sorted(call_ids) == sorted(answered), f"{name}: calls and answers do not match"
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
        # After a kill the question may be repeated, or an answer given twice, but not more often.
        assert len(users) <= 1 + kills if name == "plan" else not users
    effects = sorted({int(line) for line in (folder / "effects").read_text().split()})
    assert effects == list(range(PLACES))
    times = len((folder / "effects").read_text().split())
    assert times <= PLACES + 2 * kills, f"{times} calls after {kills} kills"
    return result


def main(folder: Path, seed: int, rounds: int) -> int:
    """Compare ``rounds`` killed runs with one that was never killed."""
    random_ = random.Random(seed)
    calm = folder / "calm"
    calm.mkdir(parents=True)
    assert not fork(run_until_killed, calm, NEVER, NEVER)
    expected = check_end(calm, 0)
    steps, writes = json.loads((calm / "counts.json").read_text())
    kills_in_all = 0
    for number in range(rounds):
        folder_of_round = folder / f"round{number}"
        folder_of_round.mkdir()
        kills = 0
        script: list[tuple[int, int]] = []
        try:
            while kills < 12:
                # Prefer early kills: a life that resumes a run has less work left.
                share = random_.random() ** 2
                by_step = random_.random() < 0.6
                at = (1 + int(share * steps), NEVER) if by_step else (NEVER, 1 + int(share * writes))
                script.append(at)
                if not fork(run_until_killed, folder_of_round, *at):
                    break
                kills += 1
                check_kill(folder_of_round)
            else:
                script.append((NEVER, NEVER))
                assert not fork(run_until_killed, folder_of_round, NEVER, NEVER)
            outcome = check_end(folder_of_round, kills)
            assert outcome == expected, f"{outcome} is not {expected}"
        except AssertionError as error:
            print(f"seed {seed}, round {number}, kills at {script}: {error}")
            return 1
        kills_in_all += kills
    print(json.dumps({"rounds": rounds, "kills": kills_in_all, "steps": steps, "writes": writes}))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
