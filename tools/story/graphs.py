"""Agents on the service's own runtime: one that is recovered, and one that cannot be recovered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from queenright.runtime.graphs.graph import EdgeSpec, EntryPointSpec, GraphSpec, NodeSpec
from queenright.runtime.llm.model import Message, ModelReply, OnText, ToolSpec
from queenright.server.service import Service
from tests.runtime.node_parts import output_reply


class HangingModel:
    """
    A model that answers in the first node and hangs in the second.

    It hangs forever or, with ``mends``, until a recovery.
    """

    def __init__(self, name: str, *, mends: bool) -> None:
        self.name = name
        self._mends = mends
        self._never = asyncio.Event()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """Answer, or hang forever."""
        if messages[0].content == "Gather.":
            return output_reply(nectar="sweet")
        if self._mends and any("Recovery, attempt" in message.content for message in messages):
            return output_reply(honey="gold")
        await self._never.wait()
        raise AssertionError


def make_graph(graph_id: str, *, gathers: bool) -> GraphSpec:
    """Return a graph; without ``gathers``, it has nothing to save before it hangs."""
    make = NodeSpec(id="make", system_prompt="Make.", output_keys=("honey",), model_timeout_seconds=600)
    gather = NodeSpec(id="gather", system_prompt="Gather.", output_keys=("nectar",))
    return GraphSpec(
        id=graph_id,
        nodes=(gather, make) if gathers else (make,),
        edges=(EdgeSpec(source="gather", target="make"),) if gathers else (),
        entry_points=(EntryPointSpec(id="start", node_id="gather" if gathers else "make"),),
    )


async def start_graphs(service: Service) -> None:
    """Start ``forager``, which is recovered and completes, and ``drone``, whose recovery fails."""
    for agent, mends in (("forager", True), ("drone", False)):
        model = HangingModel(f"story/{agent}", mends=mends)
        service.runtime.add_graph(make_graph(agent, gathers=mends), model=model, agent_id=agent)
        await service.runtime.trigger("start", {"message": "Make honey."}, graph_id=agent)
