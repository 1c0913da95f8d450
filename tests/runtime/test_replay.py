"""A replay runs from a checkpoint of another run, in a new session."""

from __future__ import annotations

from pathlib import Path

import pytest

from queenright.runtime.agent_runtime import AgentRuntime, GraphError
from queenright.runtime.bus import EventBus
from queenright.runtime.graphs.graph import GraphSpec
from queenright.runtime.storage.checkpoint_store import CheckpointNotFoundError, CheckpointStore
from queenright.runtime.storage.session_state import SessionStatus

COUNTING = GraphSpec.model_validate(
    {
        "id": "counting",
        "nodes": [
            {"id": name, "node_type": "function", "function": name, "output_keys": [name]}
            for name in ("one", "two")
        ],
        "edges": [{"source": "one", "target": "two"}],
        "entry_points": [
            {"id": "start", "node_id": "one"},
            {"id": "alone", "node_id": "one", "isolation_level": "isolated"},
        ],
    }
)


async def run_counting(folder: Path, entry: str) -> tuple[AgentRuntime, list[str], str, list[str]]:
    """Run the graph, and return the runtime, the calls, the session's id and its checkpoint ids."""
    calls: list[str] = []
    runtime = AgentRuntime(bus=EventBus(), storage=folder)

    def make_function(name: str) -> str:
        calls.append(name)
        return name

    functions = {"one": lambda: make_function("one"), "two": lambda: make_function("two")}
    runtime.add_graph(COUNTING, functions=functions, agent_id="counter", primary=True)
    await runtime.start()
    result = await runtime.wait(await runtime.trigger(entry, {"message": "go"}))
    session = runtime.session_store().open(result.session_id)
    (session.artifacts).mkdir(exist_ok=True)
    (session.artifacts / "made.txt").write_text("by one", encoding="utf-8")
    checkpoints = CheckpointStore(session.checkpoints, clock=lambda: 0.0, ids=str).list_checkpoints()
    return runtime, calls, session.id, [execution.checkpoint_id for execution in checkpoints]


async def test_replay_continues_from_checkpoint_without_changing_the_original(
    tmp_path: Path,
) -> None:
    runtime, calls, session, [_, first_checkpoint] = await run_counting(tmp_path, "start")
    store = runtime.session_store()
    state_before = store.read_state(session)

    run = await runtime.replay(session, first_checkpoint)
    result = await runtime.wait(run.id)

    assert (result.status, result.outputs) == (SessionStatus.COMPLETED, {"two": "two"})
    assert calls == ["one", "two", "two"]
    assert result.session_id != session
    assert store.read_state(session) == state_before
    assert store.read_state(result.session_id).memory == state_before.memory
    artifact = store.open(result.session_id).artifacts / "made.txt"
    assert artifact.read_text(encoding="utf-8") == "by one"
    await runtime.stop()


async def test_finished_or_isolated_run_cannot_be_replayed(tmp_path: Path) -> None:
    runtime, _, session, [last_checkpoint, first_checkpoint] = await run_counting(tmp_path / "a", "start")
    with pytest.raises(GraphError, match="finished at that point"):
        await runtime.replay(session, last_checkpoint)
    with pytest.raises(CheckpointNotFoundError):
        await runtime.replay(session, "0000000009-none")
    await runtime.stop()
    with pytest.raises(GraphError, match="not started"):
        await runtime.replay(session, first_checkpoint)

    runtime, _, session, [_, first_checkpoint] = await run_counting(tmp_path / "b", "alone")
    with pytest.raises(GraphError, match="restore it there"):
        await runtime.replay(session, first_checkpoint)
    await runtime.stop()
