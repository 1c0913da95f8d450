"""The client and an agent that runs inside the service."""

from __future__ import annotations

import pytest

from queenright.client import AsyncQueenright, RequestRejectedError
from tests.client.conftest import EXAMPLES

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLE = {"folder": str(EXAMPLES / "docs_checker" / "sample")}


async def wait_for_end(qr: AsyncQueenright, execution: str, after: str) -> tuple[str, str]:
    """Follow the agent's events until a run ends; return its end type and its session."""
    types = ["execution_completed", "execution_failed"]
    async with qr.events.stream(types=types, agent_id="docs_checker", last_event_id=after) as stream:
        async for event in stream:
            if event.execution_id == execution:
                return event.type, event.session_id
    raise AssertionError("the stream has ended")


async def test_agent_is_loaded_run_inspected_and_unloaded(qr: AsyncQueenright) -> None:
    discovered = {item.name: item async for item in qr.agents.discover()}
    slot = await qr.agents.load(discovered["docs_checker"].path, by="ada")
    name, graph = slot.agent_id, slot.graph_id
    [last_event_id] = [item.id async for item in qr.audit.list(limit=1)]
    run = await qr.agents.trigger(name, SAMPLE)
    end_type, session = await wait_for_end(qr, run.execution_id, last_event_id)

    detail = await qr.agents.session(name, session)
    checkpoints = [checkpoint async for checkpoint in qr.agents.checkpoints(name, session)]
    replayed = await qr.agents.replay(name, session, checkpoints[-1].checkpoint_id)
    _, replay_session = await wait_for_end(qr, replayed.execution_id, last_event_id)
    nodes = [node.node_id async for node in qr.agents.nodes(name, graph)]
    messages = [message async for message in qr.agents.messages(name, session)]

    assert [item.agent_id for item in await qr.agents.loaded()] == ["docs_checker"]
    assert (end_type, detail.status) == ("execution_completed", "completed")
    assert (await qr.agents.execution(name, run.execution_id)).status == "completed"
    assert replay_session != session
    assert {session.session_id async for session in qr.agents.sessions(name)} == {session, replay_session}
    assert (await qr.agents.stats(name)).totals.executions >= 1
    assert [entry_point.entry_point_id async for entry_point in qr.agents.entry_points(name)]
    assert (await qr.agents.goal_progress(name)).progress is not None
    assert (await qr.agents.node(name, graph, nodes[0])).node_id == nodes[0]
    assert (await qr.agents.criteria(name, graph, "write_report")).visits >= 1
    assert [row async for row in qr.agents.logs(name)]
    assert [row async for row in qr.agents.node_logs(name, graph, "write_report", session_id=session)]
    assert messages
    assert [graph.graph_id async for graph in qr.agents.graphs(name) if not graph.of_service] == [graph]
    assert await qr.agents.active_graph(name) == graph
    assert await qr.agents.set_active_graph(name, graph) == graph
    assert (await qr.agents.get(name)).loaded == slot
    assert (await qr.agents.stop(name)).executions == []

    await qr.agents.delete_session(name, replay_session)
    await qr.agents.unload(name)

    assert await qr.agents.loaded() == []
    with pytest.raises(RequestRejectedError, match="queenright agents load") as refused:
        await qr.agents.stats(name)
    assert refused.value.status == 404
