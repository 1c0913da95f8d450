"""Agents inside the service that load other agents with the lifecycle tools (004)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.runtime.agents import adder, keeper, write_agent
from tests.server.agents.parts import AgentService, run_agent_service


async def run_keeper(home: AgentService) -> dict[str, Any]:
    """Let the keeper agent load and start the adder agent, and return the adder's finished run."""
    response = await home.request("POST", "/api/agents/keeper/trigger", json={"input_data": {}}, status=202)
    keeper_run = await home.wait_for_end("keeper", response["execution_id"])
    assert keeper_run["outputs"] == {"answer": "started"}, keeper_run
    messages = await home.request("GET", f"/api/agents/keeper/sessions/{keeper_run['session_id']}/messages")
    [run] = [
        result.rpartition(" ")[2]
        for result in list_tool_results(messages)
        if result.startswith("started 'adder'")
    ]
    return await home.wait_for_end("keeper", run)


def list_tool_results(session_messages: dict[str, Any]) -> list[str]:
    """Return the texts of the tool results in a session."""
    return [message["text"] for message in session_messages["messages"] if message["role"] == "tool"]


async def test_agent_loads_and_starts_another_agent(tmp_path: Path) -> None:
    """
    004: an agent may use the lifecycle tools that its node names. It loads other agents as additional graphs.
    """
    adder(tmp_path / "agents" / "adder")
    folder = keeper(tmp_path / "agents" / "keeper")
    async with run_agent_service(tmp_path, agents={"load": [str(folder)]}) as home:
        sum_ = await run_keeper(home)
        graphs = (await home.request("GET", "/api/agents/keeper/graphs"))["graphs"]
        await home.request("DELETE", "/api/agents/keeper/graphs/adder", status=204)

    assert sum_["outputs"] == {"sum": 3}
    assert [(graph["graph_id"], graph["agent_id"], graph["primary"]) for graph in graphs[:2]] == [
        ("adder", "adder", False),
        ("keeper", "keeper", True),
    ]


async def test_agent_loads_no_agent_from_outside_the_roots(tmp_path: Path) -> None:
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
    folder = write_agent(tmp_path / "agents" / "reacher", spec, replies)
    async with run_agent_service(tmp_path, agents={"load": [str(folder)]}) as home:
        response = await home.request(
            "POST", "/api/agents/reacher/trigger", json={"input_data": {}}, status=202
        )
        finished_run = await home.wait_for_end("reacher", response["execution_id"])
        session = finished_run["session_id"]
        messages = await home.request("GET", f"/api/agents/reacher/sessions/{session}/messages")
        graphs = (await home.request("GET", "/api/agents/reacher/graphs"))["graphs"]

    assert [graph["graph_id"] for graph in graphs if not graph["of_service"]] == ["reacher"]
    assert any("there is no agent" in result for result in list_tool_results(messages))
