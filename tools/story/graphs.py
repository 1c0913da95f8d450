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

    It hangs forever or, with ``answers_after_recovery``, until a recovery.
    """

    def __init__(self, name: str, *, answers_after_recovery: bool) -> None:
        self.name = name
        self._answers_after_recovery = answers_after_recovery
        self._never_set = asyncio.Event()

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], on_text: OnText | None = None
    ) -> ModelReply:
        """Answer, or hang forever."""
        if messages[0].content == "Gather.":
            return output_reply(nectar="sweet")
        if self._answers_after_recovery and any(
            "Recovery, attempt" in message.content for message in messages
        ):
            return output_reply(honey="gold")
        await self._never_set.wait()
        raise AssertionError


def make_graph(graph_id: str, *, has_gather_node: bool) -> GraphSpec:
    """Return a graph; without ``has_gather_node``, it hangs before its first checkpoint."""
    make = NodeSpec(id="make", system_prompt="Make.", output_keys=("honey",), model_timeout_seconds=600)
    gather = NodeSpec(id="gather", system_prompt="Gather.", output_keys=("nectar",))
    return GraphSpec(
        id=graph_id,
        nodes=(gather, make) if has_gather_node else (make,),
        edges=(EdgeSpec(source="gather", target="make"),) if has_gather_node else (),
        entry_points=(EntryPointSpec(id="start", node_id="gather" if has_gather_node else "make"),),
    )


async def start_graphs(service: Service) -> None:
    """Start ``forager``, which is recovered and completes, and ``drone``, whose recovery fails."""
    for agent, is_recoverable in (("forager", True), ("drone", False)):
        model = HangingModel(f"story/{agent}", answers_after_recovery=is_recoverable)
        service.runtime.add_graph(
            make_graph(agent, has_gather_node=is_recoverable), model=model, agent_id=agent
        )
        await service.runtime.trigger("start", {"message": "Make honey."}, graph_id=agent)
