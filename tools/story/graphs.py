"""Agents on the service's own runtime: one that needs a second life, and one whom no life helps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from queenright.runtime.graphs.graph import EdgeSpec, EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import Message, ModelReply, OnText, ToolSpec
from queenright.server.service import Service
from tests.runtime.node_parts import sets


class Hanging:
    """A model that gathers at once and hangs over the honey; ``mends`` once it is told of another life."""

    def __init__(self, name: str, *, mends: bool) -> None:
        self.name = name
        self._mends = mends
        self._never = asyncio.Event()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """Answer, or never."""
        if messages[0].content == "Gather.":
            return sets(nectar="sweet")
        if self._mends and any("Recovery, attempt" in message.content for message in messages):
            return sets(honey="gold")
        await self._never.wait()
        raise AssertionError


def two_node_graph(graph_id: str, *, gathers: bool) -> GraphSpec:
    """Return a graph; one that does not gather has nothing to save before it hangs."""
    make = NodeSpec(id="make", system_prompt="Make.", output_keys=("honey",), model_timeout_seconds=600)
    gather = NodeSpec(id="gather", system_prompt="Gather.", output_keys=("nectar",))
    return GraphSpec(
        id=graph_id,
        nodes=(gather, make) if gathers else (make,),
        edges=(EdgeSpec(source="gather", target="make"),) if gathers else (),
        entry_points=(EntryPointSpec(id="start", node_id="gather" if gathers else "make"),),
    )


async def begin_graphs(service: Service) -> None:
    """Start ``forager``, who is brought back and completes, and ``drone``, with whom that fails for good."""
    for agent, mends in (("forager", True), ("drone", False)):
        model = Hanging(f"story/{agent}", mends=mends)
        service.runtime.add_graph(two_node_graph(agent, gathers=mends), model=model, agent_id=agent)
        await service.runtime.trigger("start", {"message": "Make honey."}, graph_id=agent)
