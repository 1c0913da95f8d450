"""Agents inside the service that load others: the lifecycle tools of 004, for any agent that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.runtime.agents import adder, folder_of, keeper
from tests.server.agents.parts import House, house


async def run_keeper(home: House) -> dict[str, Any]:
    """Let the keeper load and start the adder; return how that run stands."""
    started = await home.ask("POST", "/api/agents/keeper/trigger", json={"input_data": {}}, status=202)
    ended = await home.over("keeper", started["execution_id"])
    assert ended["outputs"] == {"answer": "started"}, ended
    messages = await home.ask("GET", f"/api/agents/keeper/sessions/{ended['session_id']}/messages")
    [run] = [text.rpartition(" ")[2] for text in tool_results(messages) if text.startswith("started 'adder'")]
    return await home.over("keeper", run)


def tool_results(said: dict[str, Any]) -> list[str]:
    """Return what tools answered in a session."""
    return [message["text"] for message in said["messages"] if message["role"] == "tool"]


async def test_agent_loads_and_starts_another_agent(tmp_path: Path) -> None:
    """004: lifecycle tools are for any agent whose nodes name them; what they load is a graph beside it."""
    adder(tmp_path / "agents" / "adder")
    folder = keeper(tmp_path / "agents" / "keeper")
    async with house(tmp_path, agents={"load": [str(folder)]}) as home:
        sum_ = await run_keeper(home)
        graphs = (await home.ask("GET", "/api/agents/keeper/graphs"))["graphs"]
        await home.ask("DELETE", "/api/agents/keeper/graphs/adder", status=204)

    assert sum_["outputs"] == {"sum": 3}
    assert [(graph["graph_id"], graph["agent_id"], graph["primary"]) for graph in graphs[:2]] == [
        ("adder", "adder", False),
        ("keeper", "keeper", True),
    ]


async def test_agent_loads_nothing_from_outside_the_roots(tmp_path: Path) -> None:
    adder(tmp_path / "elsewhere")
    spec = {
        "name": "reacher",
        "model": "scripted:replies.json",
        "graph": {
            "nodes": [{"id": "n", "system_prompt": "x", "tools": ["load_agent"], "output_keys": ["done"]}],
            "entry_points": [{"id": "start", "node_id": "n"}],
        },
    }
    path = str(tmp_path / "elsewhere")
    replies = [
        {"tool_calls": [{"name": "load_agent", "arguments": {"agent_path": path}}]},
        {"tool_calls": [{"name": "set_output", "arguments": {"done": "yes"}}]},
    ]
    folder = folder_of(tmp_path / "agents" / "reacher", spec, replies)
    async with house(tmp_path, agents={"load": [str(folder)]}) as home:
        started = await home.ask("POST", "/api/agents/reacher/trigger", json={"input_data": {}}, status=202)
        ended = await home.over("reacher", started["execution_id"])
        session = ended["session_id"]
        messages = await home.ask("GET", f"/api/agents/reacher/sessions/{session}/messages")
        graphs = (await home.ask("GET", "/api/agents/reacher/graphs"))["graphs"]

    assert [graph["graph_id"] for graph in graphs if not graph["of_service"]] == ["reacher"]
    assert any("there is no agent" in text for text in tool_results(messages))
