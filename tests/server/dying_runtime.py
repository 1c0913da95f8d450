"""
A service whose worker repeats one call until the process kills itself (used by `test_runtime_workers.py`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from pydantic import BaseModel

from queenright.runtime.graphs.graph import EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import ModelReply, ToolCall
from queenright.runtime.llm.scripted_provider import ScriptedProvider
from queenright.runtime.tooling.tools import Tool
from queenright.server.build import build
from queenright.server.settings import Settings


class Query(BaseModel):
    q: str


SEARCH = Tool("search", "Search.", Query, lambda query: f"nothing about {query.q}")


def make_search_graph(graph_id: str) -> GraphSpec:
    """Return a graph with one node, which calls the search tool."""
    node = NodeSpec(id="search", system_prompt="Search.", tools=("search",), model_timeout_seconds=600)
    entry = EntryPointSpec(id="start", node_id="search")
    return GraphSpec(id=graph_id, nodes=(node,), entry_points=(entry,))


def make_search_reply(number: int, text: str = "") -> ModelReply:
    """Return a reply that calls the search tool, with the same arguments each time."""
    return ModelReply(text=text, tool_calls=(ToolCall(f"c{number}", "search", '{"q": "honey"}'),))


async def main(settings: Settings, session_id: str) -> None:
    service = await build(settings)
    await service.start()
    model = ScriptedProvider([make_search_reply(1), make_search_reply(2), _kill_process])
    service.runtime.add_graph(make_search_graph("hive"), model=model, tools=[SEARCH], agent_id="bee")
    store = service.runtime.session_store("hive")
    store.create(graph_id="hive", entry_point="start", agent_id="bee", session_id=session_id)
    await service.runtime.trigger("start", {"message": "go"}, graph_id="hive", session_id=session_id)
    await asyncio.sleep(60)


def _kill_process(*_: object) -> ModelReply:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


if __name__ == "__main__":
    asyncio.run(main(Settings.model_validate_json(Path(sys.argv[1]).read_text("utf-8")), sys.argv[2]))
